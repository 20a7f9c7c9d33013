"""A settings file: the settings that all runs share, those that each run overrides, and which runs are compared.

A run is compared with an untrained model, its control, which is a run that the settings file need not name.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from ffkv.base.errors import UserError
from ffkv.base.settings import EMBEDDED, Comparison, Dictionary, Section
from ffkv.base.settings.messages import problems_of, shown
from ffkv.base.settings.section import Name, third
from ffkv.branches.registry import BRANCHES
from ffkv.branches.settings import AUTO, NONE, Report, Settings

COMPARISONS = "comparisons"  # key of the settings file, and folder of what is made
UNTRAINED = "-untrained"  # what the name of a control adds to that of its run
STEPS = re.compile(r"(results/[^/]+/checkpoint)/steps/\d+/?")  # a copy of a model that the workflow trains


class Configuration(Settings):
    """The content of a settings file: shared settings, and per run the settings that it overrides."""

    runs: dict[Name, dict[str, Any]] = Field(min_length=1, json_schema_extra={"additionalProperties": False})
    """Run name, and the settings that this run overrides. Each run has its own results and its own report."""
    comparisons: dict[Name, Comparison] = Field({})
    """Name of a comparison, and which runs it shows over each other. Each comparison has its own report."""


def resolve(configuration: dict[str, Any]) -> dict[str, Settings]:
    """Returns the complete settings of every run of a settings file, by name, from its content; then of their controls.

    The run's own settings override the shared settings, and these override the defaults. `report.control: auto` becomes the
    name of the run's control, see `untrained`. It stays where there is none.

    Raises:
        UserError: an unknown key, a wrong type or an impossible value. The message names the key, the value and what is
            allowed, for all problems at once.
    """
    if not isinstance(configuration, dict):
        raise UserError(f"The settings are {shown(configuration)}: must be a mapping of settings with the key `runs`.")
    problems, shared_problems = problems_of(Configuration, configuration), problems_of(Settings, _shared(configuration))
    runs = configuration.get("runs")
    resolved = {}
    for name, merged in _merged(configuration).items():
        run_problems = problems_of(Settings, merged) + _sound(merged).contradictions()
        problems += [f"runs.{name}: {problem}" for problem in run_problems if problem not in shared_problems]
        if not run_problems:
            resolved[name] = Settings(**merged)
    resolved = _with_controls(resolved)
    names = {*runs, *resolved} if isinstance(runs, dict) else set()
    # A control that is named is another run of the file, or the control of another run.
    problems += [
        f"runs.{name}: report.control is {control!r}: must be auto, none or the name of another run of this file"
        for name, settings in resolved.items()
        if (control := settings.report.control) not in (AUTO, NONE) and (control == name or control not in names)
    ]
    problems += _wrong_comparisons(configuration.get(COMPARISONS), names)
    problems += [
        f"runs.{name}: embedded.tuned_from is the checkpoint that this run makes itself: name that of another run"
        for name, own in resolved.items()
        if own.model.checkpoint == EMBEDDED
        and Path(own.embedded.tuned_from).is_relative_to(f"results/{name}/checkpoint")
    ]
    problems += [
        f"runs.{name}: must have another name, because this is the name of the control of {run}"
        for name, run in controls_of(runs if isinstance(runs, dict) else ()).items()
    ]
    if problems:
        raise UserError("The settings are not valid:\n" + "\n".join(f"  {problem}" for problem in problems))
    return resolved


def _shared(configuration: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in configuration.items() if key not in ("runs", COMPARISONS)}


def _merged(configuration: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns what the settings file says of each run: the shared settings, and over them its own."""
    shared, runs, found = _shared(configuration), configuration.get("runs"), {}
    for name, overrides in runs.items() if isinstance(runs, dict) else ():
        merged = {**shared, **overrides} if isinstance(overrides, dict) else shared
        for key in merged.keys() & shared.keys():  # a section that both have is merged setting by setting
            if isinstance(shared[key], dict) and isinstance(merged[key], dict):
                merged = {**merged, key: {**shared[key], **merged[key]}}
        found[name] = merged
    return found


def _sound(merged: dict[str, Any]) -> Settings:
    """Returns the settings of a run as far as nothing is wrong with them. A section with a mistake has its defaults."""
    return Settings(**{key: value for key, value in merged.items() if not problems_of(Settings, {key: value})})


def sound_settings(configuration: dict[str, Any]) -> dict[str, Settings]:
    """Returns the settings of each run of a settings file as far as nothing is wrong with them, for checks of what they name."""
    return {name: _sound(merged) for name, merged in _merged(configuration).items()}


def untrained(run: str, settings: Settings) -> Settings:
    """Returns the settings of the control of a run: a model of the same config with random weights, and smaller samples.

    Trigger examples, definitions and seed are those of the run. Jobs have a third of each sample and of the text, so a third
    of them is enough.
    """
    checkpoint = f"results/{run}/checkpoint" if settings.model.checkpoint == EMBEDDED else settings.model.checkpoint
    trained = STEPS.fullmatch(checkpoint)  # all steps have one config and one tokenizer, so their runs share a control
    model = {"checkpoint": trained[1] if trained else checkpoint, "weights": "random", "adapter": ""}
    changes: dict[str, Any] = {
        "model": settings.model.model_copy(update=model),
        "dictionary": Dictionary(),  # made for trained weights
        # Nobody reads the extra states of a control.
        "prefixes": _smaller(settings.prefixes, {"count": 200}, {"extra_states": []}),
        "report": Report(control=NONE),
        **{name: third(getattr(settings, name), 1) for name in ("shards", "layer_groups")},
    }
    for branch in BRANCHES.values():
        if branch.samples or branch.of_control:
            own, of = getattr(settings, branch.name), (branch.samples, branch.of_control)
            if isinstance(own, dict):
                changes[branch.name] = {key: _smaller(each, *of) for key, each in own.items()}
            else:
                changes[branch.name] = _smaller(own, *of)
    return settings.model_copy(update=changes)


def _smaller(section: Section, samples: Mapping[str, int], others: Mapping[str, Any]) -> Section:
    sizes = {name: third(getattr(section, name), least) for name, least in samples.items()}
    return section.model_copy(update={**sizes, **others})


def controls_of(runs: Iterable[str]) -> dict[str, str]:
    """Returns the controls among runs, by their names: the name of a control to the run that it was made for."""
    names = {*runs}
    return {name: run for run in runs if (name := f"{run}{UNTRAINED}") in names}


def _with_controls(runs: dict[str, Settings]) -> dict[str, Settings]:
    """Returns the runs, each with the name of its control, and after them the controls. Equal ones are one."""
    named, controls = dict[str, Settings](), dict[str, Settings]()
    for run, settings in runs.items():
        named[run] = settings
        # Random weights are made in one piece.
        if settings.report.control == AUTO and settings.model.weights != "random" and not settings.model.max_memory:
            own = untrained(run, settings)
            name = next((name for name, other in controls.items() if other == own), f"{run}{UNTRAINED}")
            controls[name] = own
            report = settings.report.model_copy(update={"control": name})
            named[run] = settings.model_copy(update={"report": report})
    return {**named, **controls}


def resolve_comparisons(configuration: dict[str, Any]) -> dict[str, Comparison]:
    """Returns the comparisons of a settings file that `resolve` accepts, by their names."""
    return {name: Comparison(**values) for name, values in (configuration.get(COMPARISONS) or {}).items()}


def _wrong_comparisons(comparisons: Any, names: set[str]) -> list[str]:
    """Returns what is wrong with comparisons beside their types: a comparison is of runs of the file."""
    problems = []
    if comparisons and COMPARISONS in names:
        problems.append(f"runs.{COMPARISONS}: must have another name, because comparisons are written to this folder")
    for name, values in comparisons.items() if isinstance(comparisons, dict) else ():
        if not isinstance(values, dict) or problems_of(Comparison, values):
            continue  # told with the other wrong types
        comparison = Comparison(**values)
        found = comparison.contradictions()
        found += [f"runs: {run!r} is not a run of this file" for run in comparison.runs if run not in names]
        problems += [f"{COMPARISONS}.{name}: {problem}" for problem in found]
    return problems
