"""Repositories of the Hugging Face hub: which commit is read, what is fetched, and what went wrong.

`commit` sets up the library `huggingface_hub`, resolves a branch to a commit, which all jobs of a run read, and says in one
sentence what went wrong. `fetch` brings files of that commit into the hub's cache, and makes sure that they arrived whole.
"""
