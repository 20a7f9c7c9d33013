"""The commands of the branches, `ffkv keys patterns` and the others, made from the descriptions of their steps."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from ffkv.base.files.columns import WILD, Table
from ffkv.base.options import FOLDER, READABLE, output_option, step_options
from ffkv.base.steps import EVERY_GROUP, File, Step
from ffkv.branches.branch import Branch

BEHAVIOUR = "{behaviour}"  # in the path of what is made for each behaviour
# What a step may read: the help of its option.
INPUTS = {
    "model": "The folder model/ of the run.",
    "values": "The run's values.h5.",
    "triggers": "The run's triggers.h5.",
    "prefixes": "The run's sampled_prefixes.h5.",
    "train": "The train split, corpus/train.h5.",
    "validation": "The validation split, corpus/validation.h5.",
    "projections": "The file values/projections/<group>.h5",
}


def command_group(branch: Branch) -> click.Group:
    """Returns the commands of a branch, as `ffkv <branch>`."""
    commands = {name: _command(name, step, branch) for name, step in branch.steps.items()}
    return click.Group(branch.name, commands, help=branch.about)


def _command(name: str, step: Step, branch: Branch) -> click.Command:
    def run(**given: Any) -> None:
        files = {each.rstrip(EVERY_GROUP): given.pop(f"in_{each.rstrip(EVERY_GROUP)}") for each in step.reads}
        outputs = {output: given.pop(output) for output in _outputs(step)}
        given |= {"settings": given.pop(branch.name)} if branch.name in given else {}
        module, function = step.function.split(":")
        made = getattr(import_module(module), function)(**files, **given)
        _write(step, made, outputs)

    command: Callable = step_options(step)(run)
    if any(BEHAVIOUR in each.path for each in step.writes):
        command = click.option("--name", type=str, required=True, help="Name of the behaviour.")(command)
    for option, about in reversed(_outputs(step).items()):
        command = output_option(about, "--" + option.replace("_", "-"))(command)
    for each in reversed(step.reads):
        command = _input(each, branch)(command)
    return click.command(name, help=step.about)(command)


def _input(name: str, branch: Branch) -> Callable:
    """Returns the option of a file that a step reads."""
    plain = name.rstrip(EVERY_GROUP)
    flag, many = "--" + plain.replace("_", "-"), name.endswith(EVERY_GROUP)
    about = INPUTS[plain] if plain in INPUTS else f"The file {_written(branch, plain)}"
    kind = FOLDER if plain == "model" else READABLE
    told = f"{about}; repeat it for each one." if many else about.removesuffix(".") + "."
    return click.option(flag, f"in_{plain}", type=kind, multiple=many, required=True, help=told)


def _written(branch: Branch, name: str) -> str:
    """Returns the path of what a step of the branch writes: by the name of the file, or of the step if it writes one file."""
    steps = branch.steps.items()
    return next(_shown(e.path) for step, own in steps for e in own.writes if name in (e.name, step))


def _has_parts(step: Step) -> bool:
    """Tells whether the step writes parts of what the run has: one group of layers, one shard, one behaviour."""
    return any(WILD.search(each.path) for each in step.writes)


def _shown(path: str) -> str:
    return WILD.sub(r"<\1>", path)


def _outputs(step: Step) -> dict[str, str]:
    """Returns the options that write, and their help. Tables that are not by group go into one folder."""
    if not _has_parts(step):
        return {"output": f"Folder to write into, {step.writes[0].path.split('/')[0]}/."}
    names = [f"output_{each.name}" for each in step.writes] if len(step.writes) > 1 else ["output"]
    return {
        name: f"{'Table' if isinstance(each, Table) else 'File'} to write, {_shown(each.path)}."
        for name, each in zip(names, step.writes, strict=True)
    }


def _write(step: Step, made: Any, outputs: Mapping[str, Path]) -> None:
    """Writes what a step returned: tables by name into a folder; or by group one thing, or several as `step.writes` has them."""
    from ffkv.base.files import tables

    if not _has_parts(step):
        described = {each.name: each for each in step.writes}
        made = made if isinstance(made, dict) else {step.writes[0].name: made}
        if made.keys() != described.keys():
            raise ValueError(f"{step.function} returned {sorted(made)}; described are {sorted(described)}")
        (folder,) = outputs.values()
        things = [(described[name], table, folder / f"{name}.csv") for name, table in made.items()]
    else:
        things = list(zip(step.writes, made if isinstance(made, tuple) else [made], outputs.values(), strict=True))
    for each, thing, path in things:
        if isinstance(each, File):
            module, function = each.writer.split(":")
            getattr(import_module(module), function)(path, thing)
        else:
            each.check(thing)
            tables.write(thing, path)
