"""One description per branch of the analysis: its steps, its tables, and its words in the report."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ffkv.base.errors import UserError
from ffkv.base.files.columns import WILD, Table, always
from ffkv.base.steps import File, Step

if TYPE_CHECKING:
    from ffkv.branches.settings import Settings


# The files that steps of several branches read, below the folder of a run, by their names in `Step.reads`.
FILES = {
    "model": "model",
    "values": "values.h5",
    "triggers": "triggers.h5",
    "prefixes": "sampled_prefixes.h5",
    "train": "corpus/train.h5",
    "validation": "corpus/validation.h5",
    "projections": "values/projections/{group}.h5",
}


# Parts of paths that are names of a mapping of settings: the settings. A step on one of them takes `--name`.
NAMED = {"behaviour": "behaviours", "concept": "concepts"}


@dataclass(frozen=True)
class Branch:
    """A branch. Its folder below `ffkv.branches`, its section of the settings and its folder in a run have its name.

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
    # the figures of this section, by their names there: their titles
    figures: Mapping[str, str] = field(default_factory=dict)
    # "module:name" of its section of settings: a class; or a type with its default, as pydantic takes them. "" if it has none
    settings: str = ""
    section: str = ""  # "module:name" of its `ffkv.run.report.section.Section`; "" if the report shows nothing of it
    # numbers of samples in its settings, of which a control has a third, or this many if a third is less
    samples: Mapping[str, int] = field(default_factory=dict)
    # the settings that a control has in place of those of its run
    of_control: Mapping[str, Any] = field(default_factory=dict)
    # "module:function" of what returns those local files that a section of its settings names and that are there. It takes the section, and
    # `read`: then it raises UserError if a step could not read them. Rules take them by `runs.files` and `runs.content` of the branch's name
    local_files: str = ""
    # whether a run with such settings has the branch; None: every run has it
    applies: "Callable[[Settings], bool] | None" = None

    @property
    def field(self) -> tuple[Any, Any]:
        """The type of its settings, and their default."""
        found = load(self.settings)
        return found if isinstance(found, tuple) else (found, found())

    @property
    def rules(self) -> dict[str, Step]:
        """The steps of the branch by the names of their rules."""
        return {f"{self.name}_{name}": step for name, step in self.steps.items()}

    @property
    def tables(self) -> list[Table]:
        """All tables that the steps of the branch write."""
        return [each for each in self.writes if isinstance(each, Table)]

    def path(self, name: str) -> str:
        """Returns the path of what a step reads, below the folder of a run: one of `FILES`, or what a step of the branch writes.

        `name`: the name of the file; or of the step if it writes one file.
        """
        of_steps = {key: step.writes[0].path for key, step in self.steps.items()}
        return (of_steps | {each.name: each.path for each in self.writes} | FILES)[name]

    def is_in(self, settings: "Settings") -> bool:
        """Tells whether a run with such settings has the branch. A run has none that came after the ffkv that made it."""
        return settings.knows(self.name) and (self.applies is None or self.applies(settings))

    def sections(self, settings: "Settings", parts: Mapping[str, str] = {}) -> list[Any]:
        """Returns its section of settings, as a list; of a mapping of names all of them, or the one that `parts` name."""
        if not isinstance(own := getattr(settings, self.name, None), dict):
            return [own] if self.settings else []
        wanted = [parts[part] for part in NAMED if NAMED[part] == self.name and part in parts]
        return [own[name] for name in wanted or own]

    def find_files(self, section: Any, read: bool = False) -> list[str]:
        """Returns the files of `local_files`. Raises UserError, also for whatever else goes wrong in it."""
        try:
            return load(self.local_files)(section, read) if self.local_files else []
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{self.local_files}, which finds files of {self.name}, fails: {error!r}.") from error

    @property
    def writes(self) -> list[Table | File]:
        """All that the steps of the branch write."""
        return [each for step in self.steps.values() for each in step.writes]

    def files(self, settings: "Settings", absent: bool = False) -> Iterator[str]:
        """Yields the files of a run with such settings, below its folder; or those that only runs with others have."""
        for each in self.writes:
            if absent != (self.is_in(settings) and each.applies(settings)):
                yield from paths(each.path, parts_of(settings))

    def may_lack(self, step: Step, name: str) -> bool:
        """Tells whether a run that has a step may lack a file that the step reads: other settings ask for the file."""
        asked = {each.applies for each in self.writes if each.name == name}
        return bool(asked - {always} - {each.applies for each in step.writes})


def load(name: str) -> Any:
    """Returns what a name "module:name" stands for. Its module is imported."""
    module, attribute = name.split(":")
    return getattr(import_module(module), attribute)


def parts_of(settings: "Settings") -> dict[str, Sequence[Any]]:
    """Returns the groups of layers, the shards, the behaviours and the concepts of a run."""
    named = {part: list(getattr(settings, section)) for part, section in NAMED.items()}
    return {"group": range(settings.layer_groups), "shard": range(settings.shards), **named}


def paths(path: str, parts: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """Yields the files that a path with wild parts stands for."""
    names = WILD.findall(path)
    for values in itertools.product(*(parts[name] for name in names)):
        yield path.format(**dict(zip(names, values)))
