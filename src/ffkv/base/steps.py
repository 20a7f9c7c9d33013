"""One step of the workflow: its function, what it reads, the settings that it takes and what it writes; and how its jobs work.

A rule takes its options and its reruns from this description, and the command takes its options from it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from ffkv.base.dependencies import code_hash
from ffkv.base.errors import UserError
from ffkv.base.files.columns import Table, Written, always

if TYPE_CHECKING:
    from ffkv.branches.settings import Settings

UNTRACKED = ("model/max_memory",)  # settings that change no number, so that a change repeats no rule
FOR_READERS = ("corpus/title",)  # settings that no step takes, though it takes their section: reports read them
MODULES = ("model/device", "model/trust_remote_code")  # the settings of a step that runs modules of the model
EVERY_GROUP = "*"  # after the name of what a step reads: all files of the name


@dataclass(frozen=True)
class File(Written):
    """A file that a step writes and that is no table."""

    writer: str  # "module:function" of what writes it, from its path and what the step returns
    applies: "Callable[[Settings], bool]" = always  # as of `Table`


@dataclass(frozen=True)
class Step:
    """A step, which a rule and a command of the same name start."""

    function: str  # "module:function": a function of what it is given (`ffkv.branches.given`), settings and seed, as far as it takes them
    about: str = ""  # what the command does, for its help
    # the files that it reads, by name, see `ffkv.branches.branch.FILES`. A name with `*` stands for all files of the
    # name: those of all groups of layers, shards or behaviours.
    reads: tuple[str, ...] = ()
    # the settings that it takes: sections such as "triggers", settings such as "model/device", or "seed"
    settings: tuple[str, ...] = ()
    writes: tuple[Table | File, ...] = ()  # what it returns, in this order
    imports: str = "tables"  # what its jobs import, see `ffkv.workflow.jobs.LIBRARIES`
    # patterns of paths, such as "ffkv/run/report/*", of modules that it imports by name while it runs, and of their data
    also: tuple[str, ...] = ()
    # how much it has to do in a run (`ffkv.plan.facts.RunFacts`): things; or products of two numbers, if it uses
    # `model/device`; of all its jobs. And rows or numbers that it writes. `ffkv plan` takes both beside those of a small
    # run, so that a constant factor of things may be left out. None: neither grows with the run.
    amount: Callable[[Any], tuple[float, float]] | None = None
    # bytes that one of its jobs holds beside what others of its `imports` hold, as far as they grow, for `ffkv plan`
    memory: Callable[[Any], float] | None = None

    @property
    def has_threads(self) -> bool:
        """Whether jobs of the step may have several threads."""
        return self.imports == "model" or "layer_groups" in self.settings

    @property
    def tracked(self) -> list[str]:
        """The settings whose change repeats the rule."""
        return [name for name in self.settings if name not in UNTRACKED]

    @property
    def code(self) -> str:
        """A hash over the code that the step's numbers depend on."""
        return code_hash(self.function, self.also)


class Rules(dict[str, Step]):
    """The rules of a package that is no branch, by their names. Raises TypeError if one is no `Step`."""

    def __init__(self, **steps: Step) -> None:
        super().__init__(steps)
        if odd := [name for name, step in steps.items() if not isinstance(step, Step)]:
            raise TypeError(f"the rule {odd[0]} is no Step")


@dataclass(frozen=True)
class Part:
    """One of several parts.

    Attributes:
        index: which part this is, from 0.
        count: how many parts there are.
    Examples:
        >>> ffkv.Part(1, 4).of(10)
        range(2, 5)
    """

    index: int = 0
    count: int = 1

    def of(self, total: int) -> range:
        """Returns the numbers of 0..total-1 that belong to this part.

        Parts are contiguous, as even as can be; with more parts than numbers some are empty. Raises UserError if there is no such part.
        """
        if not 0 <= self.index < self.count:
            raise UserError(f"There is no part {self.index} of {self.count}: parts count from 0.")
        return range(total * self.index // self.count, total * (self.index + 1) // self.count)


WHOLE = Part()


@dataclass(frozen=True)
class Work:
    """How a step does its work: where, in which batches, and on which part of it. It changes numbers by rounding alone.

    Attributes:
        device: "auto", "cpu", "cuda" or "cuda:1".
        max_memory: the setting `model.max_memory`.
        batch_tokens: maximum number of tokens per batch, with padding; or "auto", see the setting `batches.tokens`.
        part: the shard of the corpus, or the group of layers.
        trust_remote_code: whether the checkpoint's own code may run, if the model needs it.
        halvings: how often `batch_tokens` is halved, because a GPU had too little memory.
    Examples:
        >>> ffkv.Work(device="cpu", part=ffkv.Part(0, 2)).part  # the first of two groups of layers
        Part(index=0, count=2)
    """

    device: str = "auto"
    max_memory: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    batch_tokens: int | Literal["auto"] = "auto"
    part: Part = WHOLE
    trust_remote_code: bool = False
    halvings: int = 0
