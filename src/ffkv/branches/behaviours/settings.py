"""The settings of a behaviour: a set of prompts, and what is asked about it."""

from typing import Annotated, Any, Literal

from pydantic import Field

from ffkv.base.settings.messages import shown, suggestion
from ffkv.base.settings.section import Name, Section, Whole
from ffkv.branches.behaviours.words import READ


class Behaviour(Section):
    """What a model does on a set of prompts, and which memories cause it (docs/behaviours.md)."""

    prompts: str = Field(min_length=1)
    """File of prompts: a JSON object per line. A pair has `clean_prefix`, `patch_prefix`, `clean_answer` and `patch_answer`; a
    prompt has `prompt`, `answer` and `wrong`; of two lists, a line has `positive` or `negative`. `label` is optional, and so is `group`:
    lines of one group count as one draw. Answers may have several tokens (docs/behaviours.md)."""
    fields: dict[str, str] = Field({})
    """What the file calls its fields, if it was written for another tool: ffkv's name of a field, and the file's. For example,
    `{clean_prefix: clean, patch_prefix: corrupted, clean_answer: correct, patch_answer: incorrect}`. Each line must have these."""
    chat_template: bool = False
    """Put each prompt that is text into the chat template of the tokenizer, as what a user says. A prompt that is a list of
    messages always is."""
    count: Whole = Field(200, ge=2)
    """Maximum number of prompts that are read. If the file has more, this many are drawn, over groups and labels in turn."""
    baseline: Literal["patch", "mean", "zero"] = "patch"
    """What a coefficient becomes when a memory is patched: `patch`: what it is on the other prompt of the pair; `mean`: its mean
    over the train split; `zero`. Prompts that are no pairs take the mean in place of `patch`."""
    positions: Literal["last", "all"] = "last"
    """Where memories are patched: at the `last` token of a prompt, or at `all` tokens behind what precedes every sentence. With `all`
    the two prompts of a pair need the same number of tokens, two lists are refused, and exact effects take longer, at most as many
    times as a prompt has tokens."""
    frozen: bool = True
    """Whether memories are screened a second time, with norms and attention held: one more pass, and the columns `frozen_`. Else these
    are empty."""
    minimum_accuracy: float = Field(0.6, ge=0, le=1)
    """Share of prompts on which the answer must have a higher logit than the wrong answer. Below it, the report says that there
    is nothing to explain."""
    flips: int = Field(100_000, ge=100, le=10_000_000)
    """Maximum number of sign flips of the groups of prompts, for p-values of the contrast: all there are, or else random ones, of
    which memories that are plainly not significant take fewer."""
    candidates: Whole = Field(20, ge=1)
    """Number of memories with the largest contrast, and of memories with the largest screen, whose exact effects are measured."""
    effect_prompts: Whole = Field(50, ge=1)
    """Maximum number of prompts on which exact effects and sets are measured: of the second half, over groups and labels in turn."""
    controls: int = Field(99, ge=1, le=10_000)
    """Number of random memories of the same layer per candidate, as a control: a change of the same length along the value of
    such a memory. The smallest possible p-value is 1 / (controls + 1). With 20 for each candidate that is measured, one memory alone
    can have a q-value of 0.05."""
    directions: int = Field(10, ge=0, le=10_000)
    """Number of random directions per candidate, as a second control of the same length."""
    sets: list[Annotated[Whole, Field(ge=1)]] = Field([1, 2, 5, 10, 20, 50, 100, 200], min_length=1, max_length=100)
    """Numbers n: the n memories with the largest screen are patched, or all but them are."""
    random_sets: int = Field(10, ge=1, le=1000)
    """Number of random sets beside each set. The contributions of their memories sum up to the same length."""
    missed: Whole = Field(280, ge=0)
    """Number of memories outside the candidates whose exact effects are measured, too: they bound how many memories with an effect the
    screen missed. They are drawn in ten strata of its size, a fourteenth in each but the last. 0: there is no bound."""
    side_effect_prefixes: Whole = Field(50, ge=1)
    """Maximum number of sampled validation prefixes on which the sets are patched too, for their side effects."""
    bootstraps: int = Field(200, ge=10, le=1000)
    """Number of times that groups of prompts are drawn again, for the stability of sets. They are compared two by two."""

    graph_prompts: Whole = Field(0, ge=0)
    """Maximum number of prompts of each half for the graph of the behaviour (docs/graphs.md), whose answers have one token. 0 makes no graph."""
    graph_share: float = Field(0.8, gt=0, le=1)
    """Share of the logit difference that the memories of the graph keep when all others are patched; and of the summed sizes of
    the effects of all edges that the edges of the graph have."""
    graph_maximum: Whole = Field(200, ge=1)
    """Most memories that the set has on the way to the graph."""
    graph_resamples: int = Field(20, ge=2, le=1000)
    """Number of times that the graph is made again from groups of prompts that are drawn again, for its stability."""

    def contradictions(self) -> list[str]:
        """Each size is there once, ascending; fields are those that ffkv reads, and each is called by one name."""
        theirs, valid = [*self.fields.values()], ", ".join(READ)
        strange = [name for name in self.fields if name not in READ]
        found = [f"fields has no {shown(name)}.{suggestion(name, READ)} ffkv reads: {valid}" for name in strange]
        if len({*theirs}) < len(theirs) or "" in theirs or "\0" in "".join(theirs):
            found += [f"fields is {shown(self.fields)}: must give each field its own name, not empty and without NUL"]
        if self.sets != sorted({*self.sets}):
            found += [f"sets is {shown(self.sets)}: must be different numbers, ascending"]
        return found


ABOUT = """Name of a behaviour: its settings. For example, `agreement: {prompts: agreement.jsonl}` asks which memories cause what
the model does on these prompts."""
BEHAVIOURS: Any = (dict[Name, Behaviour], Field({}, description=ABOUT))
