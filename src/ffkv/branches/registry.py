"""The branches. It imports nothing heavy, because the workflow reads it at every start."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from ffkv.base.doors import brought_by, entries, load_all, unusable
from ffkv.base.errors import UserError
from ffkv.base.lookup import is_file
from ffkv.base.steps import EVERY_GROUP
from ffkv.branches.branch import Branch


def _shown(*branches: Branch) -> set[str]:
    """Returns the names by which readers ask for the figures and the tables of branches."""
    tables = (each for branch in branches for each in branch.tables if each.path.endswith(".csv"))
    return {*(each.name for each in tables), *(name for branch in branches for name in branch.figures)}


def _try_steps(branch: Branch, module: str, known: set[str]) -> None:
    """Looks for what a branch of another package names, and reads its modules. Raises LookupError or SyntaxError if it cannot."""
    rules = Path(str(sys.modules[module].__file__)).with_name("rules.smk")
    wrong = [str(rules)] * (not is_file(rules))
    wrong += [each.path for each in branch.writes if not each.path.startswith(f"{branch.name}/")]  # it may be another's
    for step in branch.steps.values():
        wrong += [each for each in step.settings if each.partition("/")[0] not in known]
        wrong += [each for each in step.reads if not branch.path(each.rstrip(EVERY_GROUP))]
    for named in filter(None, [branch.section, *(step.function for step in branch.steps.values())]):
        if found := find_spec(named.partition(":")[0]):
            compile(Path(str(found.origin)).read_bytes(), str(found.origin), "exec")
        wrong += [named] * (found is None)
    if doubled := _shown(branch) & _shown(*BRANCHES.values()):
        raise LookupError(f"another branch has a figure or a table of the same name: {', '.join(sorted(doubled))}")
    if wrong:
        raise LookupError(f"no such file, place of a table, setting or function: {', '.join(wrong)}")


# In the order of the report. A new branch is a folder with a `branch.py`, and its name here. Those of other packages follow.
NAMES = ("keys", "values", "composition", "refinement", "translation", "intervention", "roles", "behaviours",
         "concepts", "routing")  # fmt: skip
BRANCHES: dict[str, Branch] = {name: import_module(f"ffkv.branches.{name}.branch").BRANCH for name in NAMES}
_ADDED, _BROKEN = load_all("branches")
BROKEN: dict[str, UserError] = {**_BROKEN}  # what is wrong with a branch of another package
for _name in sorted(_ADDED, key=lambda name: bool(brought_by("branches", name))):  # ffkv's own first
    _branch = _ADDED[_name]
    if not brought_by("branches", _name):
        BRANCHES[_name] = _branch
        continue
    from pydantic import TypeAdapter

    from ffkv.base.settings import Inputs, Jobs  # takes longer than all else here, and is seldom needed

    taken = {*NAMES, *Inputs.model_fields, *Jobs.model_fields, "annotation", "report", "runs", "comparisons"}
    try:
        if _name in taken or _name != _branch.name:
            BROKEN[_name] = UserError(f"The branch {_branch.name!r}, added as {_name!r}, must have another name.")
        else:
            if _branch.settings:  # pydantic trusts defaults
                (_kind := TypeAdapter(_branch.field[0])).validate_json(_kind.dump_json(_branch.field[1]))
            _try_steps(_branch, entries("branches")[_name].module, {*taken, *_ADDED})
            BRANCHES[_name] = _branch
    except (Exception, SystemExit) as error:  # whatever goes wrong in a package of others
        BROKEN[_name] = unusable(entries("branches")[_name], entries("branches")[_name].value, error)
