"""The branches. It imports nothing heavy, because the workflow reads it at every start."""

from importlib import import_module

from ffkv.base.doors import entries, is_own, load_all, unusable
from ffkv.base.errors import UserError
from ffkv.branches.branch import Branch

# In the order of the report. A new branch is a folder with a `branch.py`, and its name here. Those of other packages follow.
NAMES = ("keys", "values", "composition", "refinement", "translation", "intervention", "roles", "behaviours",
         "concepts", "routing")  # fmt: skip
BRANCHES: dict[str, Branch] = {name: import_module(f"ffkv.branches.{name}.branch").BRANCH for name in NAMES}
_ADDED, _BROKEN = load_all("branches")
BROKEN: dict[str, UserError] = {**_BROKEN}  # what is wrong with a branch of another package
for _name, _branch in _ADDED.items():
    if is_own(entries("branches")[_name]):
        BRANCHES[_name] = _branch
        continue
    from ffkv.base.settings import Inputs, Jobs  # takes longer than all else here, and is seldom needed

    taken = {*NAMES, *Inputs.model_fields, *Jobs.model_fields, "annotation", "report", "runs", "comparisons"}
    try:
        if _name in taken or _name != _branch.name:
            message = f"The branch {_branch.name!r}, which a package adds as {_name!r}, must have another name."
            BROKEN[_name] = UserError(message)
        elif not _branch.settings or _branch.field:
            BRANCHES[_name] = _branch
    except Exception as error:  # whatever goes wrong in a package of others
        BROKEN[_name] = unusable(entries("branches")[_name], _branch.settings, error)
