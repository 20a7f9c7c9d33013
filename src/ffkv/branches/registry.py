"""The branches. It imports nothing heavy, because the workflow reads it at every start."""

from importlib import import_module

from ffkv.branches.branch import Branch

# In the order of the report. A new branch is a folder with a `branch.py`, and its name here.
NAMES = ("keys", "values", "composition", "refinement", "translation", "intervention", "roles", "behaviours")
BRANCHES: dict[str, Branch] = {name: import_module(f"ffkv.branches.{name}.branch").BRANCH for name in NAMES}
