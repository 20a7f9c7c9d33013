"""Settings that a run was made with and that are others now. `results/<run>/settings.json` knows, also where Snakemake does not."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ffkv.base.errors import UserError
from ffkv.base.hub.commit import read_commit
from ffkv.base.lookup import exists
from ffkv.base.settings.messages import shown
from ffkv.base.steps import FOR_READERS
from ffkv.run.results.expected import read_settings
from ffkv.workflow.jobs import STEPS

HUB = ("resolve_commit", "unpack", "model")
# Rules that read a setting by another way than the settings of their step.
MORE: dict[str, tuple[str, ...]] = dict.fromkeys(
    (f"model/{name}" for name in ("checkpoint", "revision", "adapter", "adapter_revision", "trust_remote_code")), HUB
)
MORE |= {"corpus/dataset": HUB[:1], "corpus/revision": HUB[:1], "annotation/folder": ("annotate_agreement",)}
MISSING = object()


class Change(NamedTuple):
    """A setting that has another value now than when a run was made. One that is not there is `MISSING`."""

    name: str  # such as "keys/per_layer"
    was: Any
    now: Any

    def __str__(self) -> str:
        other = f"was {shown(self.was)} and is {shown(self.now)} now"
        told = "is new" if self.was is MISSING else "is not there any more" if self.now is MISSING else other
        return f"{self.name.replace('/', '.')} {told}"


def changes(results: Path, settings: dict[str, Any], commits: Path | None = None) -> list[Change]:
    """Returns the settings that a run, by its folder, was made with and that are others now; none if it is not made yet.

    A commit of the hub counts as the branch or tag that it was resolved from. `commits`: the folder that says so, for a control
    that of its run; by default that of the run. Settings that cannot be read are told by whoever opens the run.
    """
    try:
        made = read_settings(results).model_dump(mode="json")
        for kind, section in (("model", "model"), ("dataset", "corpus")):
            if exists(path := (commits or results / "commits") / f"{kind}.json"):
                commit = read_commit(path)
                if made[section]["revision"] == commit.read_at:
                    made[section]["revision"] = commit.revision
    except UserError:
        return []
    return [*_differences(made, json.loads(json.dumps(settings)))]


def _differences(made: dict[str, Any], asked: dict[str, Any], above: str = "") -> Iterator[Change]:
    for name in {**made, **asked}:
        was, now = made.get(name, MISSING), asked.get(name, MISSING)
        if isinstance(was, dict) and isinstance(now, dict):
            yield from _differences(was, now, f"{above}{name}/")
        elif was != now:
            yield Change(above + name, was, now)


def rules_of(changed: Iterable[Change]) -> set[str]:
    """Returns the rules that changed settings are for. A behaviour or a concept that is new has no results yet, and repeats none; one that is gone
    is left out of what sums them up.
    """
    rules = {"write_settings"}
    for name, _, now in (each for each in changed if each.was is not MISSING and each.name not in FOR_READERS):
        if now is MISSING:
            rules.add(f"{name.partition('/')[0]}_summarize")
            continue
        reading = (rule for rule, step in STEPS.items() for read in step.tracked if f"{name}/".startswith(f"{read}/"))
        rules |= {*MORE.get(name, ()), *reading}
    return rules
