"""Asks a finished run, from Python, for one step of a branch, or about a behaviour or a concept: its files are read, and nothing is written."""

import glob
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffkv.base.doors import PREFIX
from ffkv.base.errors import UserError
from ffkv.base.files.columns import WILD
from ffkv.base.lookup import as_path
from ffkv.base.options import PARTS, WORK
from ffkv.base.settings import Section
from ffkv.base.steps import EVERY_GROUP, WHOLE, Part, Step, Work
from ffkv.base.terminal import plain, say
from ffkv.branches.behaviours.branch import BRANCH as BEHAVIOURS
from ffkv.branches.branch import FILES, NAMED, Branch, load, parts_of, paths
from ffkv.branches.commands import results
from ffkv.branches.concepts.branch import BRANCH as CONCEPTS
from ffkv.branches.given import Given
from ffkv.branches.registry import BRANCHES
from ffkv.branches.settings import Behaviour, Concept, documents, section
from ffkv.run.results.run import Run, check_run
from ffkv.run.results.run import open as open_run
from ffkv.run.results.run_files import unknown

if TYPE_CHECKING:
    import pandas as pd

    from ffkv.run.behaviour import AskedBehaviour


def step(
    name: str,
    run: Run | Path | str,
    *,
    group: int | None = None,
    shard: int | None = None,
    behaviour: str | None = None,
    concept: str | None = None,
    work: Work | None = None,
    files: Mapping[str, Any] = {},
    **settings: Any,
) -> Any:
    """Takes one step of a branch of a finished run once more, and returns what its rule would write. The run stays as it is.

    Args:
        name: the branch and the step, as in the command: "refinement measure" for `ffkv refinement measure`.
        run: a finished run, or its folder.
        group, shard, behaviour, concept: the part of the run, for a step on one of them. It may be left out if the run has one only.
        work: the device and the batches; by default those of the run's settings. Its part is not used.
        files: other files in the place of those of the run, by the names of the command's options: `{"triggers": path}`.
        settings: `seed`, and sections that the step takes, by their names; by default those of the run.
    Returns:
        What the function of the step returns: a table; a tuple of tables and objects, in the order of docs/formats.md; or, of a step
        that summarizes, its tables by the stem of their file. "translation read" returns a function that writes the states to a path.
    Raises:
        UserError: there is no such step, group, shard, behaviour or concept; the step takes no such argument; a file of the run is missing
            or damaged, or belongs to another model, tokenizer or corpus; or see the setting `model.device`.
    Examples:
        >>> table = ffkv.step("refinement measure", "results/tiny", group=0)
        >>> len(table)  # 200 prefixes in the one layer of the group
        200
        >>> run = ffkv.open("results/tiny")
        >>> few = ffkv.settings.Keys(per_layer=2, pattern_triggers=20, background_prefixes=100)
        >>> patterns, by_prefix = ffkv.step("keys patterns", run, group=1, keys=few, seed=7)
        >>> sorted(by_prefix["sample"].unique())  # random keys are the control
        ['random', 'trigger']
        >>> ffkv.step("values summarize", run)["figure_5_rank"]["layer"].tolist()
        [0, 1]
    """
    steps = {f"{branch.name} {key}": (branch, own) for branch in BRANCHES.values() for key, own in branch.steps.items()}
    if name not in steps:
        raise unknown("step", name, [*steps])
    branch, found = steps[name]
    if not isinstance(work, Work | None) or not isinstance(files, Mapping):
        raise UserError(f"{name} takes work such as ffkv.Work('cpu'), and files such as {{'triggers': path}}.")
    run = run if isinstance(run, Run) else open_run(run)
    asked = {"group": group, "shard": shard, "behaviour": behaviour, "concept": concept}
    parts = _parts(name, found, parts_of(run.settings), asked)
    if wrong := [each for each in settings if each not in sections(found)]:
        valid = [*parts, *sections(found), "work", "files"]
        raise UserError(f"{name} takes no argument {wrong[0]!r}. Choose one of: {', '.join(valid)}.")
    read = _files(name, branch, found, run, parts)
    for each, other in files.items():
        if each not in read:
            raise unknown(f"file that {name} reads", each, [*read])
        read[each] = Path(other) if isinstance(other, str) else other
    named = [value for part in NAMED for value in parts.get(part, ())]
    with Given(_work(found, work, run, parts), *named, **read) as given:
        return call(branch, found, given, {each: _setting(each, settings, run, parts) for each in sections(found)})


@documents(Behaviour)
def behaviour(run: Run, prompts: Path | str, *, device: str = "auto", **options: Any) -> "AskedBehaviour":
    """Asks which memories of a finished run cause what its model does on a set of prompts (docs/behaviours.md).

    It is what a run does with the setting `behaviours`, in one process and without files. The run stays as it is.

    Args:
        run: a finished run.
        prompts: file of prompts, a JSON object per line.
        device: "auto", "cpu", "cuda" or "cuda:<n>", as the setting `model.device`.
        {options}
    Returns:
        An object. `memories`: the candidates by name, the strongest first; `sets`; `tables`: the tables of the report's section of
        behaviours by their names, and contrast and screen of every memory; `plot()`: the main figure; `save(folder)`: the tables as
        CSV files, and a page; `told`: what was found, in sentences. `found["behaviours"]` is a table of `tables`.
    Raises:
        UserError: the file of prompts is missing or malformed, or too few prompts can be used; or the model cannot be
            differentiated, or changed while it runs.
    Examples:
        >>> run = ffkv.open("results/tiny")
        >>> rows = ['{"positive": "This list"}', '{"positive": "This file"}']
        >>> rows += ['{"negative": "These lists"}', '{"negative": "These files"}']
        >>> _ = open("prompts.jsonl", "w").write("\\n".join(rows))
        >>> found = ffkv.behaviour(run, "prompts.jsonl", flips=100)
        >>> found
        <Behaviour prompts in tiny: ...>
        >>> found["behaviours"]["kind"].tolist(), len(found["memories"])  # all memories of two layers
        (['lists'], 256)
    """
    path = as_path(prompts)
    its = section(Behaviour, **{**options, "prompts": str(path)})
    made = _take_steps(BEHAVIOURS, run, plain(path.stem), its, device)
    from ffkv.run.behaviour import AskedBehaviour  # draws, which no step does

    return AskedBehaviour(run, plain(path.stem), its, {**made["summarize"], "memories": made["choose"][0]})


@documents(Concept)
def concepts(run: Run, labels: Path | str = "", *, device: str = "auto", **options: Any) -> dict[str, "pd.DataFrame"]:
    """Asks how well the memories of a finished run separate two labels of texts (docs/settings.md).

    It is what a run does with the setting `concepts`, in one process and without files. The run stays as it is.

    Args:
        run: a finished run.
        labels: file of texts with labels, a pattern, or `package:NAME/PATTERN`; empty if `rules` are named.
        device: "auto", "cpu", "cuda" or "cuda:<n>", as the setting `model.device`.
        {options}
    Returns:
        The tables of the report's section of concepts by their names, see docs/formats.md.
    Raises:
        UserError: the file is missing or malformed, or has not two labels; or no task has enough texts.
    Examples:
        >>> found = ffkv.concepts(ffkv.open("results/tiny"), rules="text", texts=40, sizes=[1, 4], shuffles=19)
        >>> found["concept_curves"]["features"].unique().tolist()
        ['memories', 'residual', 'directions', 'whole']
    """
    its = section(Concept, **{**options, "labels": str(labels)})
    named = Path(its.labels.removeprefix(PREFIX) or its.rules)
    name = plain(named.parent.name if glob.has_magic(named.name) else named.stem)  # of a pattern its folder or package
    return _take_steps(CONCEPTS, run, name, its, device)["summarize"]


def _take_steps(branch: Branch, run: Run, name: str, its: Section, device: str) -> dict[str, Any]:
    """Takes all steps of a branch on one behaviour or concept. Returns what each made, by its name."""
    check_run(run)
    limits = (run.settings.model.max_memory, run.settings.batches.tokens)
    work = Work(device, *limits, trust_remote_code=run.trust_remote_code)
    files: dict[str, Any] = {name: run.folder / file for name, file in FILES.items()}
    files["projections"] = [run.folder / file for file in paths(FILES["projections"], parts_of(run.settings))]
    made: dict[str, Any] = {}
    for number, (key, step) in enumerate(branch.steps.items(), 1):
        say(f"Step {number} of {len(branch.steps)}: {key}", error=True, name=False)
        reads = [each.rstrip(EVERY_GROUP) for each in step.reads]
        with Given(work, name, **{each: files[each] for each in reads}) as given:
            made[key] = call(branch, step, given, {branch.name: its, "seed": run.settings.seed})
        written = {each.name: [thing] for each, thing in results(step, made[key])}
        files |= written | {key: next(iter(written.values()))}
    return made


def _files(name: str, branch: Branch, step: Step, run: Run, parts: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Returns the files of the run that a step reads, by their names; those of all parts for a name with `*`."""
    read: dict[str, Any] = {}
    absent = {str(run.folder / path) for path in branch.files(run.settings, absent=True)}
    for each in step.reads:
        plain = each.rstrip(EVERY_GROUP)
        stored = [run.folder / path for path in paths(branch.path(plain), {**parts_of(run.settings), **parts})]
        if not stored:
            part = WILD.findall(branch.path(plain))[0]
            raise UserError(f"{name} reads {branch.path(plain)} of each {part}, and {run.name} has no {NAMED[part]}.")
        there = [path for path in stored if str(path) not in absent]
        if not there and not branch.may_lack(step, plain):
            raise UserError(f"{name} reads {branch.path(plain)}, and {run.name} has none: other settings ask for it.")
        read[plain] = there if each.endswith(EVERY_GROUP) else there[0]
    return read


def _parts(
    name: str, step: Step, of_run: Mapping[str, Sequence[Any]], asked: Mapping[str, Any]
) -> dict[str, Sequence[Any]]:
    """Returns the group, the shard and the behaviour that a step works on, as far as it does; each as a list of one."""
    parts: dict[str, Sequence[Any]] = {}
    for part in dict.fromkeys(part for each in step.writes for part in WILD.findall(each.path)):
        value, valid = asked[part], of_run[part]
        if value is None and len(valid) != 1:
            choices = ", ".join(f"{part}={each!r}" for each in valid) or "none, as the run has none"
            raise UserError(f"{name} works on one {part} at a time. Choose one of: {choices}.")
        if value is not None and str(value) not in map(str, valid):
            raise unknown(part, value, [str(each) for each in valid])
        parts[part] = [each for each in valid if value is None or str(each) == str(value)]
    for part, value in asked.items():
        if value is not None and part not in parts:
            raise UserError(f"{name} takes no argument {part!r}: it does not work on one {part} at a time.")
    return parts


def _setting(name: str, asked: Mapping[str, Any], run: Run, parts: Mapping[str, Sequence[Any]]) -> Any:
    """Returns the seed, or a section of settings: what was asked for, else that of the run."""
    own = getattr(run.settings, name)
    own = own[next(parts[part][0] for part in NAMED if NAMED[part] == name)] if isinstance(own, dict) else own
    value = asked.get(name, own)
    if not isinstance(value, type(own)) or isinstance(value, bool):
        example = f"ffkv.settings.{type(own).__name__}()" if isinstance(own, Section) else str(own)
        raise UserError(f"{name} is {value!r}. Give such as {example}.")
    return value


def _work(step: Step, work: Work | None, run: Run, parts: Mapping[str, Sequence[Any]]) -> Work:
    """Returns the work on the part that was asked for. Without `work`, it is done as the settings of the run say."""
    its, part = run.settings, WHOLE
    work = work or Work(its.model.device, its.model.max_memory, its.batches.tokens)
    for count, of_run in (("layer_groups", "group"), ("shards", "shard")):
        if count in step.settings:
            part = Part(parts[of_run][0], getattr(its, count))
    return replace(work, part=part, trust_remote_code=work.trust_remote_code or run.trust_remote_code)


def sections(step: Step) -> list[str]:
    """Returns the sections of settings, and `seed`, that the function of a step takes."""
    return [*dict.fromkeys(name.partition("/")[0] for name in step.settings if name not in {*WORK, *PARTS})]


def call(branch: Branch, step: Step, given: Given, settings: Mapping[str, Any]) -> Any:
    """Calls the function of a step. `settings`: sections and `seed`, by their names; what it does not take is left out."""
    taken = {"settings" if name == branch.name else name: settings[name] for name in sections(step)}
    return load(step.function)(given, **taken)
