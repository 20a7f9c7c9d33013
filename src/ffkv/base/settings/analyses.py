"""The settings of what is done with model and corpus, and all settings of a run.

A setting has its name, type, default, limits and meaning, which is the docstring below it. No other code knows defaults.
"""

from typing import Annotated, Literal

from pydantic import Field

from ffkv.base.settings.behaviour import Behaviour, BehaviourName
from ffkv.base.settings.inputs import Corpus, Embedded, Model
from ffkv.base.settings.messages import shown
from ffkv.base.settings.section import Section, Seed, Whole


class Batches(Section):
    """How sentences become the batches that the model reads. The number of shards does not change them."""

    tokens: Whole = Field(1024, ge=1)
    """Maximum number of tokens per batch, padding included. It limits the memory that a job needs."""
    block_sentences: Whole = Field(2048, ge=1)
    """Number of sentences per block. The sentences of a block are sorted by length, so that those of a batch are about
    equally long. All blocks of a corpus but the last have this size."""


class Triggers(Section):
    """The trigger examples of every key, also called its max-activating examples (paper section 3.1)."""

    per_key: int = Field(50, ge=1, le=10_000)
    """Number of trigger examples that are stored per key (t in the paper)."""
    one_prefix_per_sentence: bool = True
    """Store only the best prefix of each sentence, as the authors' code does. If this is false, all prefixes of a
    sentence compete, as in the text of the paper."""
    shared_prefixes_compete: Literal["once", "per_sentence"] = "once"
    """How often a prefix competes that several sentences begin with. `once`: once, and its next token is the one that
    follows it in most of them. `per_sentence`: once in each of these sentences, as in the authors' code. Rounding then
    decides which sentence comes first."""
    include_empty_prefix: bool = False
    """Let the empty prefix compete too, which is the beginning-of-sequence token alone. The authors' code does this."""
    negative: bool = True
    """Also store the prefixes with the most negative coefficients, if the model has negative coefficients."""


class Prefixes(Section):
    """The sample of validation prefixes for the analyses of composition and refinement (paper section 5)."""

    count: Whole = Field(4000, ge=1)
    """Number of different prefixes in the sample."""
    sample: Literal["sentence", "prefix"] = "sentence"
    """How to draw the sample. `sentence`: draw a sentence, then a position in it, as the authors' code does. `prefix`:
    draw from all prefixes with equal probability."""
    extra_states: list[Literal["x", "factor"]] = Field([])
    """Further states to store, for analyses of your own: `x`, the input of the feed-forward layer; `factor`, the factor of a
    norm after the layer. The workflow does not read them."""


class Keys(Section):
    """Patterns in trigger examples, and the removal of tokens (paper section 3.2)."""

    per_layer: Whole = Field(100, ge=1)
    """Number of random keys per layer that are analysed."""
    pattern_triggers: Whole = Field(25, ge=3)
    """Number of trigger examples per key that are searched for patterns."""
    minimum_prefixes: Whole = Field(3, ge=2)
    """Minimum number of a key's trigger examples that must share a feature for it to count as a pattern."""
    false_discovery_rate: float = Field(0.05, gt=0, lt=1)
    """Expected share of false patterns among the patterns that are reported (Benjamini-Hochberg). It holds for each
    layer and each family of patterns."""
    background_prefixes: int = Field(20_000, ge=100, le=10_000_000)
    """Number of random train prefixes from which chance frequencies are estimated."""
    removal_triggers: Whole = Field(5, ge=1)
    """Number of trigger examples per key from which tokens are removed. The paper takes 50."""
    precision: bool = True
    """Measure how the number type of the model changes the trigger examples, if `model.dtype` is not float32. The trigger
    examples of up to 25 keys per layer are read again in float32, one block at a time."""

    def contradictions(self) -> list[str]:
        """A pattern cannot need more trigger examples than are searched."""
        least, most = self.minimum_prefixes, self.pattern_triggers
        problem = f"keys.minimum_prefixes is {least}: must be at most keys.pattern_triggers, {most}"
        return [problem] if least > most else []


class Values(Section):
    """The prediction of each value (paper section 4)."""

    projection: Literal["head", "unembedding"] = "head"
    """How a value becomes a prediction. `head`: through the unembedding head of the model, with its final norm
    if it has one. `unembedding`: by the output embedding alone."""
    readout: Literal["head", "both"] = "head"
    """Whether values and states are also read through linear maps to the last layer. `head`: they are not. `both`: the report
    has a section with both readings of figures 4, 5 and 8 to 10, see [translation.md](translation.md)."""
    top_tokens: int = Field(50, ge=1, le=100_000)
    """Number of tokens with the highest logits, and of tokens with the lowest logits, that are stored per value."""
    predictive: int = Field(100, ge=1, le=10_000)
    """Number of values that table 2 shows. These are the values with the highest top probability."""
    bins: int = Field(8, ge=1, le=1000)
    """Number of bins of the top probability in figure 6."""


class Composition(Section):
    """How the memories of a layer combine (paper section 5.1)."""

    mass: float = Field(0.9, gt=0, le=1)
    """Share of the summed contribution |m|·‖v‖ that defines the effective number of memories: the smallest number of
    memories that together reach this share."""
    short_prefix: Whole = Field(5, ge=1)
    """Number of words below which a prefix counts as short."""


class Refinement(Section):
    """How predictions change from layer to layer (paper section 5.2)."""

    changes: int = Field(100, ge=1, le=10_000)
    """Number of prefixes that are sampled among those whose prediction the last layer changes."""


class Translation(Section):
    """Linear maps from the space of each layer to that of the last layer, if `values.readout` is `both`."""

    prefixes: Whole = Field(20_000, ge=5)
    """Number of train prefixes on whose states the maps are fitted. A map needs several times as many as the residual stream has
    dimensions. Their block outputs are stored: 4 bytes per prefix, layer and dimension."""
    fit: Literal["ridge", "divergence"] = "ridge"
    """How the maps are fitted. `ridge`: in closed form, with the smallest squared error of states. `divergence`: from there on by
    gradient descent on the divergence of predictions, as the tuned lens does, as long as the divergence on prefixes that are left
    out falls. It takes some hundred times as long."""


class Intervention(Section):
    """What memories cause: their coefficients (activations of neurons) are changed while the model runs."""

    memories: Whole = Field(10, ge=0)
    """Number of random memories per layer whose coefficients are changed. 0 means that no coefficient is changed and the
    report has no section of interventions."""
    examples: int = Field(5, ge=1, le=10_000)
    """Number of trigger examples per memory on which its coefficient is changed. They are drawn from those that are
    stored. If trigger examples with negative coefficients are stored, the same number of these is drawn too."""
    scales: list[Annotated[float, Field(ge=-100, le=100)]] = Field([0.0, 0.5, 2.0, -1.0], min_length=1, max_length=100)
    """Factors by which the coefficient is multiplied. Factor 0 removes the memory (zero ablation). It must be in the list,
    because the controls are compared with the removal."""
    tokens: int = Field(10, ge=1, le=100_000)
    """Number of top tokens of a value whose log-probabilities are measured. Only the `values.top_tokens` tokens that are
    stored can be measured."""
    controls: int = Field(99, ge=1, le=10_000)
    """Number of random memories of the same layer per memory, as a control. In place of the contribution, a vector of the
    same length along the value of such a memory is removed. The smallest possible p-value is 1 / (controls + 1)."""
    directions: int = Field(10, ge=0, le=10_000)
    """Number of random directions per memory, as a second control of the same length."""
    similar: int = Field(10, ge=0, le=10_000)
    """Number of other memories per prefix that are removed themselves, as a third control. Their contributions are about
    as long as the contribution of the memory."""
    similar_size: float = Field(0.1, gt=0, le=1)
    """Maximum difference between the length of the contribution of such another memory and that of the memory, as a share of
    the latter."""
    silent_below: float = Field(0.05, ge=0, le=1)
    """Size of its coefficient up to which a memory counts as silent on a prefix, as a share of the mean size on its own
    trigger examples. The placebo is the removal of a memory from prefixes on which it is silent, but not exactly 0."""
    top_k: list[Annotated[Whole, Field(ge=0)]] = Field([0, 1, 3, 10, 30, 100], min_length=1, max_length=100)
    """Numbers k, one measurement each: the k memories with the largest contributions keep their coefficients, or k random
    memories of the layer. The coefficients of all others become their means over the corpus (mean ablation)."""
    top_k_prefixes: Whole = Field(200, ge=1)
    """Number of sampled validation prefixes on which this is measured."""

    def contradictions(self) -> list[str]:
        """The removal is what controls are compared with. Each scale and each number is there once."""
        rules = {
            "scales: must contain 0, the removal, with which controls are compared": 0 in self.scales,
            "scales: must be different numbers": len({*self.scales}) == len(self.scales),
            "top_k: must be different numbers": len({*self.top_k}) == len(self.top_k),
        }
        broken = (rule.partition(":") for rule, holds in rules.items() if not holds)
        return [f"intervention.{name} is {shown(getattr(self, name))}: {rule.strip()}" for name, _, rule in broken]


class Roles(Section):
    """What the weights of a memory alone say of it."""

    threshold: float = Field(0.5, ge=0, lt=1)
    """Cosine from which on two vectors count as having the same direction, or opposite ones, when a memory's type is named."""
    ignored: float = Field(0.01, gt=0, le=1)
    """Share of the directions of the residual stream that count as ignored by the head: those that it reads the least."""
    tokens: int = Field(10, ge=1, le=100_000)
    """Number of tokens with the highest logits of a value, and with the lowest, among which the tokens of trigger examples
    are sought. At most `values.top_tokens`."""


class Annotation(Section):
    """What people and machines say about keys, beside the tests."""

    folder: str = Field("annotations", min_length=1)
    """Folder with the annotations of all runs. It has one folder per run, with the name of the run. A relative path starts
    in the folder that also holds `results`. If a run has no annotations, its report leaves them out."""


class Report(Section):
    """The HTML report."""

    title: str = Field("Feed-forward layers as key-value memories", min_length=1)
    """Title of the report."""
    cards: int = Field(24, ge=0, le=10_000)
    """Number of memories that the report shows in detail. They are spread over the layers."""
    card_triggers: int = Field(10, ge=1, le=10_000)
    """Number of trigger examples per memory that the report shows."""
    control: str = Field("auto", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")
    """What the report compares the run with. `auto`: an untrained model, which is the run `<run>-untrained`. It has random
    weights, and reads about a third of the text and of each sample. A model of random weights has none, nor has one with
    `model.max_memory`. `none`: nothing. Any other value is the name of a run whose model has the same number of layers."""
    paper_curves: bool = True
    """Draw the numbers of the paper beside those of the run."""


class Settings(Section):
    """All settings of one run."""

    model: Model = Model()
    embedded: Embedded = Embedded()
    corpus: Corpus = Corpus()
    batches: Batches = Batches()
    triggers: Triggers = Triggers()
    prefixes: Prefixes = Prefixes()
    keys: Keys = Keys()
    values: Values = Values()
    composition: Composition = Composition()
    refinement: Refinement = Refinement()
    translation: Translation = Translation()
    intervention: Intervention = Intervention()
    roles: Roles = Roles()
    behaviours: dict[BehaviourName, Behaviour] = Field({})
    """Name of a behaviour: its settings. For example, `agreement: {prompts: agreement.jsonl}` asks which memories cause what
    the model does on these prompts."""
    annotation: Annotation = Annotation()
    report: Report = Report()
    seed: Seed = 0
    """Seed of all random choices."""
    shards: int = Field(1, ge=1, le=10_000)
    """Number of parts into which the corpus is cut. Each part is a job. This setting changes no number in the
    results."""
    corpus_processes: int = Field(1, ge=1, le=256)
    """Number of processes that split and encode the documents of a split, all of them in one job. This setting changes no
    number in the results."""
    layer_groups: int = Field(1, ge=1, le=1000)
    """Number of parts into which the layers are cut. Each part is a job of each analysis. This setting changes no
    number in the results."""

    def contradictions(self) -> list[str]:
        """Returns the contradictions of all sections."""
        sections = [value for name in type(self).model_fields if isinstance(value := getattr(self, name), Section)]
        found = [problem for part in sections for problem in part.contradictions()]
        named = self.behaviours.items()
        return found + [f"behaviours.{name}.{problem}" for name, own in named for problem in own.contradictions()]
