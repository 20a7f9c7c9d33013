"""A settings file: the settings that all runs share, those that each run overrides, and which runs are compared."""

from typing import Any

from pydantic import Field

from ffkv.base.errors import UserError
from ffkv.base.settings.analyses import Settings
from ffkv.base.settings.comparison import Comparison, RunName
from ffkv.base.settings.messages import problems_of, shown

COMPARISONS = "comparisons"  # key of the settings file, and folder of what is made


class Configuration(Settings):
    """The content of a settings file: shared settings, and per run the settings that it overrides."""

    runs: dict[RunName, dict[str, Any]] = Field(min_length=1, json_schema_extra={"additionalProperties": False})
    """Run name, and the settings that this run overrides. Each run has its own results and its own report."""
    comparisons: dict[RunName, Comparison] = Field({})
    """Name of a comparison, and which runs it shows over each other. Each comparison has its own report."""


def resolve(configuration: dict[str, Any]) -> dict[str, Settings]:
    """Returns the complete settings of every run of a settings file, by name, from its content.

    The run's own settings override the shared settings, and these override the defaults.

    Raises:
        UserError: an unknown key, a wrong type or an impossible value. The message names the key, the value and what is
            allowed, for all problems at once.
    """
    if not isinstance(configuration, dict):
        raise UserError(f"The settings are {shown(configuration)}: must be a mapping of settings with the key `runs`.")
    shared = {key: value for key, value in configuration.items() if key not in ("runs", COMPARISONS)}
    problems, shared_problems = problems_of(Configuration, configuration), problems_of(Settings, shared)
    runs = configuration.get("runs")
    resolved = {}
    for name, overrides in runs.items() if isinstance(runs, dict) else ():
        merged = {**shared, **overrides} if isinstance(overrides, dict) else shared
        for key in merged.keys() & shared.keys():  # a section that both have is merged setting by setting
            if isinstance(shared[key], dict) and isinstance(merged[key], dict):
                merged = {**merged, key: {**shared[key], **merged[key]}}
        run_problems = problems_of(Settings, merged) or Settings(**merged).contradictions()
        problems += [f"runs.{name}: {problem}" for problem in run_problems if problem not in shared_problems]
        if not run_problems:
            resolved[name] = Settings(**merged)
    names = set(runs) if isinstance(runs, dict) else set()
    problems += _wrong_controls(resolved, names) + _wrong_comparisons(configuration.get(COMPARISONS), names)
    if problems:
        raise UserError("The settings are not valid:\n" + "\n".join(f"  {problem}" for problem in problems))
    return resolved


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


def _wrong_controls(resolved: dict[str, Settings], names: set[str]) -> list[str]:
    """A control run is another run of the file, and has no control itself."""
    problems = []
    for name, settings in resolved.items():
        control = settings.report.control
        if control and (control == name or control not in names):
            problems.append(f"runs.{name}: report.control is {control!r}: must be the name of another run of this file")
        elif control and control in resolved and resolved[control].report.control:
            problems.append(
                f"runs.{name}: report.control is {control!r}, which has a control itself: must be a run without one"
            )
    return problems
