"""Repositories of the Hugging Face hub: which commit is read, what is fetched, and what went wrong."""
