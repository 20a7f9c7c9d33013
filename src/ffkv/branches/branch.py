"""One description per branch of the analysis: its steps, its tables, and its words in the report."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ffkv.base.files.columns import WILD, Table
from ffkv.base.steps import Step

if TYPE_CHECKING:
    from ffkv.base.settings import Settings


@dataclass(frozen=True)
class Branch:
    """A branch. Its folder below `ffkv.branches`, its section of settings and its folder in a run have its name.

    From it come the command group, the options and reruns of its rules, the files of a finished run, its section of the
    report, `docs/formats.md` and the plan.
    """

    name: str
    about: str  # one line about it, for the list of commands
    # the split of the corpus that its numbers are about: "train", "validation", or "" if they are about none
    split: str
    steps: Mapping[str, Step]  # its steps, by name. The rule `<branch>_<step>` calls `ffkv <branch> <step>`.
    heading: str  # heading of its section in the report
    introduction: str  # the paragraph below the heading
    # the figures of this section, by their names in `ffkv.run.report.section_<name>`: their titles
    figures: Mapping[str, str] = field(default_factory=dict)
    # whether a run with such settings has the branch; None: every run has it
    applies: "Callable[[Settings], bool] | None" = None

    @property
    def rules(self) -> dict[str, Step]:
        """The steps of the branch by the names of their rules."""
        return {f"{self.name}_{name}": step for name, step in self.steps.items()}

    @property
    def tables(self) -> list[Table]:
        """All tables that the steps of the branch write."""
        return [each for step in self.steps.values() for each in step.writes if isinstance(each, Table)]

    def is_in(self, settings: "Settings") -> bool:
        """Tells whether a run with such settings has the branch."""
        return self.applies is None or self.applies(settings)

    def files(self, settings: "Settings") -> Iterator[str]:
        """Yields the files of a run with such settings, below its folder."""
        for each in (each for step in self.steps.values() for each in step.writes):
            if self.is_in(settings) and (not isinstance(each, Table) or each.applies(settings)):
                yield from _paths(each.path, settings)


def _paths(path: str, settings: "Settings") -> Iterator[str]:
    """Yields the files that a path with wild parts stands for."""
    parts = {"group": range(settings.layer_groups), "shard": range(settings.shards), "behaviour": settings.behaviours}
    names = WILD.findall(path)
    for values in itertools.product(*(parts[name] for name in names)):
        yield path.format(**dict(zip(names, values)))
