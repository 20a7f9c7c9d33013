"""A settings file: shared settings, and for each run what it overrides. How every run gets its complete settings."""

from typing import Annotated, Any

from pydantic import Field

from ffkv.errors import UserError
from ffkv.settings import EMBEDDED, Settings
from ffkv.settings.messages import problems_of, shown

RUN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class Configuration(Settings):
    """A settings file: shared settings, and for each run what it overrides."""

    runs: dict[Annotated[str, Field(pattern=RUN_NAME)], dict[str, Any]] = Field(
        min_length=1,
        description="Run name to what that run overrides. Each run has its own results and report.",
        json_schema_extra={"additionalProperties": False},
    )


def resolve(configuration: dict[str, Any]) -> dict[str, Settings]:
    """The complete settings of every run of a settings file.

    Args:
        configuration: what stands in `config.yaml`, as nested dictionaries.
    Returns:
        Run name to settings: defaults, overridden by the shared settings, overridden by the run's own.
    Raises:
        UserError: an unknown key, a wrong type, an impossible value; names the key, the value and what is allowed.
    """
    if not isinstance(configuration, dict):
        raise UserError(f"The settings are {shown(configuration)}: must be a mapping of settings, `runs` among them.")
    shared = {key: value for key, value in configuration.items() if key != "runs"}
    problems, inherited = problems_of(Configuration, configuration), problems_of(Settings, shared)
    runs = configuration.get("runs")
    resolved = {}
    for name, overrides in runs.items() if isinstance(runs, dict) else ():
        merged = _merge(shared, overrides if isinstance(overrides, dict) else {})
        found = problems_of(Settings, merged) or _contradictions(Settings(**merged))
        problems += [f"runs.{name}: {problem}" for problem in found if problem not in inherited]
        if not found:
            resolved[name] = Settings(**merged)
    if problems:
        raise UserError("The settings are not valid:\n" + "\n".join(f"  {problem}" for problem in problems))
    return resolved


def _merge(below: dict, above: dict) -> dict:
    """`above` over `below`; where both have a section, setting by setting."""
    merged = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], dict) and isinstance(above[key], dict):
            merged[key] = {**below[key], **above[key]}
    return merged


def _contradictions(settings: Settings) -> list[str]:
    embedded, corpus, keys = settings.embedded, settings.corpus, settings.keys
    problems = []
    if embedded.width % embedded.heads:
        problems.append(f"embedded.heads is {embedded.heads}: must divide embedded.width, {embedded.width}")
    if keys.minimum_prefixes > keys.pattern_triggers:
        problems.append(
            f"keys.minimum_prefixes is {keys.minimum_prefixes}: "
            f"must be at most keys.pattern_triggers, {keys.pattern_triggers}"
        )
    if corpus.dataset not in (EMBEDDED, "files"):
        problems += [
            f"corpus.{name} is {shown(splits)}: a hub data set takes one split name"
            for name, splits in (("train", corpus.train), ("validation", corpus.validation))
            if len(splits) > 1
        ]
    if corpus.dataset == "files" and corpus.train == ["train"]:
        problems.append(
            "corpus.train is missing: corpus.dataset is 'files', so name the paths or globs of the train text"
        )
    return problems
