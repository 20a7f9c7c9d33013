"""The commands of the branches, `ffkv keys patterns` and the others, made from the descriptions of their steps."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ffkv.base.doors import inside
from ffkv.base.files.columns import WILD, Table
from ffkv.base.options import FOLDER, READABLE, output_option, step_options
from ffkv.base.steps import EVERY_GROUP, File, Step, Work
from ffkv.branches.branch import NAMED, Branch, load
from ffkv.branches.settings import Settings


def command_group(branch: Branch) -> click.Group:
    """Returns the commands of a branch, as `ffkv <branch>`."""
    commands = {name: _command(name, step, branch) for name, step in branch.steps.items()}
    return click.Group(branch.name, commands, help=branch.about)


def _command(name: str, step: Step, branch: Branch) -> click.Command:
    @inside("branches", branch.name, f"{branch.name} {name}")
    def run(work: Work = Work(), name: str = "", **options: Any) -> None:
        from ffkv.branches.given import Given

        files = {each.rstrip(EVERY_GROUP): options.pop(f"in_{each.rstrip(EVERY_GROUP)}") for each in step.reads}
        outputs = [options.pop(output) for output in _outputs(step)]
        options |= {"settings": options.pop(branch.name)} if branch.name in options else {}
        with Given(work, name, **files) as given:
            write(step, load(step.function)(given, **options), outputs)

    command: Callable = step_options(step, Settings)(run)
    for part in NAMED.keys() & WILD.findall("".join(each.path for each in step.writes)):
        command = click.option("--name", type=str, required=True, help=f"Name of the {part}.")(command)
    for option, about in reversed(_outputs(step).items()):
        command = output_option(about, "--" + option.replace("_", "-"))(command)
    for each in reversed(step.reads):
        plain, many = each.rstrip(EVERY_GROUP), each.endswith(EVERY_GROUP)
        kind, what = (FOLDER, "folder") if plain == "model" else (READABLE, "file")
        about = f"The {what} {_shown(branch.path(plain))} of the run{'; repeat it for each one' * many}."
        names = "--" + plain.replace("_", "-"), f"in_{plain}"
        required = not branch.may_lack(step, plain)
        command = click.option(*names, type=kind, multiple=many, required=required, help=about)(command)
    return click.command(name, help=step.about)(command)


def has_parts(step: Step) -> bool:
    """Tells whether the step writes parts of what the run has: one group of layers, one shard, one behaviour or concept."""
    return any(WILD.search(each.path) for each in step.writes)


def _shown(path: str) -> str:
    return WILD.sub(r"<\1>", path)


def _outputs(step: Step) -> dict[str, str]:
    """Returns the options that write, and their help. Tables that are not by group go into one folder."""
    if not has_parts(step):
        return {"output": f"Folder to write into, {step.writes[0].path.split('/')[0]}/."}
    names = [f"output_{each.name}" for each in step.writes] if len(step.writes) > 1 else ["output"]
    return {
        name: f"{'Table' if isinstance(each, Table) else 'File'} to write, {_shown(each.path)}."
        for name, each in zip(names, step.writes, strict=True)
    }


def write(step: Step, made: Any, outputs: Sequence[Path]) -> None:
    """Writes what the function of a step returned.

    `outputs`: the paths of `step.writes`, in their order; of tables that are not by group, shard or behaviour, their folder alone.
    """
    from ffkv.base.files import tables

    paths = outputs if has_parts(step) else [outputs[0] / f"{each.name}.csv" for each in step.writes]
    for (each, thing), path in zip(results(step, made), paths, strict=True):
        if isinstance(each, File):
            load(each.writer)(path, thing)
        else:
            tables.write(thing, path)


def results(step: Step, made: Any) -> list[tuple[Table | File, Any]]:
    """Returns what the function of a step returned, each with its description. Raises ValueError, a defect of ffkv, if it is another."""
    if isinstance(made, dict):
        if made.keys() != {each.name for each in step.writes}:
            raise ValueError(f"{step.function} returned {sorted(made)}; described are {[e.name for e in step.writes]}")
        made = tuple(made[each.name] for each in step.writes)
    pairs = list(zip(step.writes, made if isinstance(made, tuple) else [made], strict=True))
    for each, thing in pairs:
        if isinstance(each, Table):
            each.check(thing)
    return pairs
