"""Repositories of the Hugging Face hub: which commit is read, what is fetched, and what went wrong.

`commit` sets up the library `huggingface_hub`, and resolves a branch to a commit, which all jobs of a run read. `fetch`
brings files of that commit into the hub's cache, and looks whether they are whole. `messages` says in a sentence what went wrong.
"""
