"""Every setting: its name, type, default, limits and meaning, which is the docstring below it.

No other code knows defaults. `ffkv settings` writes the default settings file, its JSON schema and `docs/settings.md` from
these models. The command line takes its options from them.
"""

from typing import Annotated, Literal

from pydantic import Field

from ffkv.settings.messages import shown
from ffkv.settings.section import GgufFile, Globs, Memory, Pattern, Section, Where, Whole

EMBEDDED = "embedded"


class Model(Section):
    """The language model to read."""

    checkpoint: str = Field(EMBEDDED, min_length=1)
    """Which model to read: a local folder with a transformers checkpoint, a local folder with a fairseq checkpoint
    (`model.pt` and `dict.txt`), or a hub id. `embedded` means the small GPT-2 that the workflow trains."""
    revision: str = Field("main", min_length=1)
    """Branch, tag or commit of the hub repository. The training steps of Pythia are revisions."""
    adapter: str = ""
    """A PEFT adapter, such as a LoRA, that is merged into the model: a local folder or a hub id. Empty means none."""
    adapter_revision: str = Field("main", min_length=1)
    """Branch, tag or commit of the adapter's hub repository."""
    gguf: GgufFile = ""
    """The file of the folder or repository `checkpoint` that holds the model in the GGUF form, such as
    `tiny.Q8_0.gguf`. Its weights are unpacked. The tokenizer is read from it, too. Empty: the checkpoint is one of
    transformers or fairseq."""
    weights: Literal["checkpoint", "random"] = "checkpoint"
    """Weights of the model: those of the `checkpoint`, or `random` ones, freshly initialised as its config says. A run with
    random weights is a control: it shows what the architecture and the text give without training. Config and tokenizer
    are those of the checkpoint."""
    weights_seed: int = Field(0, ge=0, lt=2**32)
    """Seed of random weights."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    """Number type of the weights. `auto` keeps the type of the checkpoint. If the type is not float32, the report shows
    how it changes the trigger examples."""
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """Device that runs the model: `cpu`, `cuda`, or one GPU such as `cuda:1`. `auto` uses a GPU if there is one. If the
    weights do not fit this device, `auto` spreads the model over the GPUs of the job, then the CPU's memory, then the
    disk."""
    max_memory: Memory = Field({})
    """The most memory that weights may take on each device, if the model is to be spread: GPUs by number, and `cpu`, such
    as `{0: 20GiB, cpu: 60GiB}`. A device that is not named gives four fifths of what is free. Empty: the model is
    spread only if it does not fit. This setting changes no number in the results."""
    gpus: int = Field(0, ge=0, le=64)
    """Number of GPUs that each job requests from a cluster if it runs the model over text. This setting changes no
    number in the results. `device` decides which of them are used. On a workstation, a job takes at least one GPU if
    there is one."""
    second_matrix: Pattern = ""
    """Regular expression for the name of the second feed-forward matrix inside its block. Set it only for model code
    whose names ffkv does not know. Empty means the known names. ffkv finds mixtures of experts without it."""
    trust_remote_code: bool = False
    """Run the Python code that the hub repository contains. Leave it off unless you trust that code."""

    def contradictions(self) -> list[str]:
        """Random weights are those of no file."""
        return [
            f"model.weights is 'random' and model.{name} is {shown(value)}: random weights take nothing from a file, so"
            f" model.{name} must be empty"
            for name, value in (("adapter", self.adapter), ("gguf", self.gguf))
            if value and self.weights == "random"
        ]


class Embedded(Section):
    """The small model that the workflow trains itself. It is used if `model.checkpoint` is `embedded`."""

    layers: int = Field(6, ge=1, le=48)
    """Number of transformer blocks."""
    width: int = Field(160, ge=8, le=65_536)
    """Size of the residual stream."""
    heads: int = Field(4, ge=1, le=1024)
    """Number of attention heads. It must divide the width."""
    vocabulary: int = Field(4096, ge=300, le=1_000_000)
    """Number of tokens in the byte-level BPE vocabulary."""
    context: int = Field(128, ge=8, le=100_000)
    """Length of the longest input, in tokens."""
    steps: Whole = Field(2600, ge=1)
    """Number of training steps."""
    batch_tokens: int = Field(512, ge=64, le=10_000_000)
    """Number of tokens per training step."""
    learning_rate: float = Field(1e-3, gt=0, le=1)
    """Highest learning rate of AdamW. The rate rises during a warm-up and then falls along a cosine."""
    keep_steps: list[Annotated[Whole, Field(ge=0)]] = Field([], max_length=1000)
    """Training steps after which the model is kept too. Step 0 is the model before the training. The folder
    `results/<run>/checkpoint/steps/<step>` is then a checkpoint that other runs can name."""

    def contradictions(self) -> list[str]:
        """The width must be a multiple of the number of heads. A step is kept once, and before the end."""
        problems = []
        if self.width % self.heads:
            problems.append(f"embedded.heads is {self.heads}: must divide embedded.width, {self.width}")
        if len({*self.keep_steps}) < len(self.keep_steps):
            problems.append(f"embedded.keep_steps is {shown(self.keep_steps)}: must be different steps")
        if late := [step for step in self.keep_steps if step > self.steps]:
            problems.append(f"embedded.keep_steps has {late[0]}: must be at most embedded.steps, {self.steps}")
        return problems


class Corpus(Section):
    """The text to read, and how it becomes sentences of tokens."""

    dataset: str = Field(EMBEDDED, min_length=1)
    """Where the text comes from: `embedded` (the documentation of the Python library), `files` (local files), or the
    hub id of a data set."""
    config: str = Field("default", min_length=1)
    """Configuration of the hub data set. `default` means the default configuration."""
    revision: str = Field("main", min_length=1)
    """Branch, tag or commit of the hub data set."""
    train: Globs = Field(["train"], min_length=1)
    """Text of the train split. For a hub data set: the name of its split. For files: one or more paths or glob patterns
    (txt, jsonl, csv or parquet, each also .gz or .zst)."""
    validation: Globs = Field([])
    """Text of the validation split, written like `train`. If the list is empty, some of the train documents become the
    validation split."""
    validation_share: float = Field(0.1, gt=0, lt=1)
    """Share of the train documents that become the validation split if `validation` is empty. A hash of its text
    decides for each document."""
    text_field: str = Field("text", min_length=1)
    """Name of the field or column that contains the text."""
    where: Where = Field({})
    """Which rows of the source are documents: columns, each with its wanted value or a list of them, such as
    `{language: en}` or `{meta.pile_set_name: [Github, ArXiv]}`. A dot leads to a column inside another. A row must have a
    wanted value in each of these columns. `limit` counts the documents that are left. Empty: all rows."""
    chat_template: bool = False
    """The field `text_field` (often called `messages`) contains chats: lists of messages with `role` and `content`. The
    chat template of the tokenizer makes a text of each. It needs `white_space: keep`."""
    white_space: Literal["collapse", "keep"] = "collapse"
    """White space of the text. `collapse`: each run of it becomes one blank, and none is at the ends of a sentence; with
    `pretokenized`, only the ends change. `keep`: every character stays as it is in the source, as code and chats need it.
    The sentences of a document, put together, are then the document."""
    txt_document: Literal["line", "paragraph", "file"] = "line"
    """Unit of a txt file that counts as one document: a `line` (as in WikiText), a `paragraph` (wrapped text that an
    empty line ends), or the whole `file`."""
    splitter: Literal["sentence", "line", "document"] = "sentence"
    """Unit of a document that counts as one sentence: a `sentence` as the rules of spaCy find it, a `line`, or the
    whole `document`."""
    pretokenized: bool = False
    """Set this to true if the words of the text are already separated by spaces, as in WikiText. A word is then the
    text between two spaces."""
    detokenize: bool = False
    """Turn text whose words are separated by spaces, as in WikiText, back into text as people write it: `state @-@ of`
    becomes `state-of`. Models that were trained on raw text read it better. Leave `pretokenized` off then, and
    `white_space` at `collapse`."""
    context: Whole = Field(0, ge=0)
    """Maximum number of tokens that the model reads at a time, those of `bos` included. 0 means the context of the model.
    A model with a shorter context keeps its own."""
    long_sentences: Literal["windows", "drop"] = "windows"
    """How to treat sentences that are longer than the context: cut them into `windows`, or `drop` them."""
    bos: Literal["auto", "always", "never"] = "auto"
    """Whether a beginning-of-sequence token precedes each sentence. `auto`: as the tokenizer does it; if it puts nothing
    there, its BOS token, or else the token that separates documents, such as `<|endoftext|>` of GPT-2 and Pythia.
    `always`: its BOS token. `never`: nothing."""
    deduplicate: bool = True
    """Count identical sentences once. The number of copies of each sentence is stored."""
    limit: Whole = Field(0, ge=0)
    """Maximum number of documents per split. 0 means all documents."""

    def contradictions(self) -> list[str]:
        """Files need names. A hub data set has one name per split. Text is not both changed and kept, and chats are kept."""
        problems = []
        if self.detokenize and self.pretokenized:
            problems.append(
                "corpus.detokenize and corpus.pretokenized are both true: after detokenize, words are no longer separated"
                " by spaces, so pretokenized must be false"
            )
        if self.detokenize and self.white_space == "keep":
            problems.append(
                "corpus.detokenize is true and corpus.white_space is 'keep': detokenize takes blanks out of the text, so"
                " white_space must be 'collapse'"
            )
        if self.chat_template and self.white_space != "keep":
            problems.append(
                "corpus.chat_template is true and corpus.white_space is 'collapse': the template's line breaks would be"
                " lost, so white_space must be 'keep'"
            )
        if self.chat_template and self.dataset == EMBEDDED:
            problems.append("corpus.chat_template is true, but corpus.dataset is 'embedded', which contains no chats")
        if self.where and self.dataset == EMBEDDED:
            problems.append("corpus.where is set, but corpus.dataset is 'embedded', which has no columns")
        if self.dataset not in (EMBEDDED, "files"):
            problems += [
                f"corpus.{name} is {shown(splits)}: a hub data set takes one split name"
                for name, splits in (("train", self.train), ("validation", self.validation))
                if len(splits) > 1
            ]
        if self.dataset == "files" and self.train == ["train"]:
            problems.append(
                "corpus.train is missing: corpus.dataset is 'files', so name the paths or globs of the train text"
            )
        return problems


class Activations(Section):
    """How sentences become batches. Blocks have a fixed size, so the number of shards changes no number in the results."""

    batch_tokens: Whole = Field(1024, ge=1)
    """Maximum number of tokens per batch, padding included. It limits the memory that a job needs."""
    block_sentences: Whole = Field(2048, ge=1)
    """Number of sentences per block. The sentences of a block are sorted by length before they are put into batches."""


class Triggers(Section):
    """The trigger examples of every key (paper section 3.1)."""

    per_key: int = Field(50, ge=1, le=10_000)
    """Number of trigger examples that are stored per key (t in the paper)."""
    one_prefix_per_sentence: bool = True
    """Store only the best prefix of each sentence, as the authors' code does. If this is false, all prefixes of a
    sentence compete, as in the text of the paper."""
    identical_prefixes: Literal["once", "each"] = "once"
    """How often a prefix competes that several sentences begin with. `once`: it is one prefix, and the token that follows
    it is the most frequent one. `each`: it competes in each of these sentences, as in the authors' code; rounding decides
    which of them comes first."""
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
    keep: list[Literal["x", "factor"]] = Field([])
    """Further states to store: `x`, the FF input; `factor`, the factor of a norm after the layer. No step reads
    them."""


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
    removal_triggers: Whole = Field(50, ge=1)
    """Number of trigger examples per key from which tokens are removed."""
    precision: bool = True
    """Measure how the number type of the model changes the trigger examples, if `model.dtype` is not float32. The model
    runs once more in float32, one block at a time."""

    def contradictions(self) -> list[str]:
        """A pattern cannot need more trigger examples than are searched."""
        if self.minimum_prefixes > self.pattern_triggers:
            return [
                f"keys.minimum_prefixes is {self.minimum_prefixes}: "
                f"must be at most keys.pattern_triggers, {self.pattern_triggers}"
            ]
        return []


class Values(Section):
    """The prediction of each value (paper section 4)."""

    projection: Literal["head", "unembedding"] = "head"
    """How a value becomes a prediction. `head`: through the head of the model, with its final norm if it
    has one. `unembedding`: by the output embedding alone."""
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


class Intervention(Section):
    """What memories cause: their coefficients are changed while the model runs."""

    memories: Whole = Field(20, ge=0)
    """Number of random memories per layer whose coefficients are changed. 0 means that no coefficient is changed and the
    report has no section of interventions."""
    examples: int = Field(10, ge=1, le=10_000)
    """Number of trigger examples per memory on which its coefficient is changed: so many with positive coefficients, and
    so many with negative ones if these are stored. They are drawn from the stored trigger examples."""
    scales: list[Annotated[float, Field(ge=-100, le=100)]] = Field([0.0, 0.5, 2.0, -1.0], min_length=1, max_length=100)
    """Factors that the coefficient is multiplied by. 0 removes the memory. It must be among them, because the controls
    are compared with the removal."""
    tokens: int = Field(10, ge=1, le=100_000)
    """Number of top tokens of a value whose log-probabilities are measured. At most `values.top_tokens` of them are
    stored."""
    controls: int = Field(99, ge=1, le=10_000)
    """Number of random memories of the same layer per memory. Each is changed by a vector as long as the removed
    contribution. The smallest possible p-value is 1 / (controls + 1)."""
    directions: int = Field(10, ge=0, le=10_000)
    """Number of random directions per memory, as a second control of the same length."""
    similar: int = Field(10, ge=0, le=10_000)
    """Number of other memories per prefix that are really removed, as a third control. Their contributions are about as
    long as that of the memory."""
    similar_size: float = Field(0.1, gt=0, le=1)
    """Maximum relative difference between the length of such a contribution and that of the memory's."""
    silent: float = Field(0.05, ge=0, le=1)
    """A memory counts as silent on a prefix if the size of its coefficient is at most this share of the mean size on its
    own trigger examples. Its removal from prefixes on which it is silent is the placebo."""
    kept: list[Annotated[Whole, Field(ge=0)]] = Field([0, 1, 3, 10, 30, 100], min_length=1, max_length=100)
    """Numbers of memories of a layer that are kept. The coefficients of all others become their means over the corpus."""
    kept_prefixes: Whole = Field(200, ge=1)
    """Number of sampled validation prefixes on which so few memories are kept."""

    def contradictions(self) -> list[str]:
        """The removal is what controls are compared with. Each scale and each number is there once."""
        problems = []
        if 0 not in self.scales:
            problems.append(
                f"intervention.scales is {shown(self.scales)}: must contain 0, the removal, with which controls are compared"
            )
        if len({*self.scales}) < len(self.scales):
            problems.append(f"intervention.scales is {shown(self.scales)}: must be different numbers")
        if len({*self.kept}) < len(self.kept):
            problems.append(f"intervention.kept is {shown(self.kept)}: must be different numbers")
        return problems


class Annotation(Section):
    """What people and machines say about keys, beside the tests."""

    folder: str = Field("annotations", min_length=1)
    """Folder with the annotations of all runs, those of a run in a folder of the run's name. A relative path starts beside
    the folder `results`. If there are no annotations of a run, its report does without them."""


class Report(Section):
    """The HTML report."""

    title: str = Field("Feed-forward layers as key-value memories", min_length=1)
    """Title of the report."""
    cards: int = Field(24, ge=0, le=10_000)
    """Number of memories that the report shows in detail. They are spread over the layers."""
    card_triggers: int = Field(10, ge=1, le=10_000)
    """Number of trigger examples per memory that the report shows."""
    control: str = Field("", pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$")
    """Name of another run whose lines are drawn in grey, as a control: one with `model.weights: random`, for example. Both
    models have the same number of layers. Empty means none."""
    paper_curves: bool = True
    """Draw the numbers of the paper beside those of the run."""


class Settings(Section):
    """All settings of one run."""

    model: Model = Model()
    embedded: Embedded = Embedded()
    corpus: Corpus = Corpus()
    activations: Activations = Activations()
    triggers: Triggers = Triggers()
    prefixes: Prefixes = Prefixes()
    keys: Keys = Keys()
    values: Values = Values()
    composition: Composition = Composition()
    refinement: Refinement = Refinement()
    intervention: Intervention = Intervention()
    annotation: Annotation = Annotation()
    report: Report = Report()
    seed: int = Field(0, ge=0, lt=2**32)
    """Seed of all random choices."""
    shards: int = Field(1, ge=1, le=10_000)
    """Number of parts into which the corpus is cut. Each part is a job. This setting changes no number in the
    results."""
    corpus_shards: int = Field(1, ge=1, le=256)
    """Number of processes that split and encode the documents of a split, all of them in one job. This setting changes no
    number in the results."""
    layer_groups: int = Field(1, ge=1, le=1000)
    """Number of parts into which the layers are cut. Each part is a job of each analysis. This setting changes no
    number in the results."""

    def contradictions(self) -> list[str]:
        """The contradictions of all sections."""
        sections = [value for name in type(self).model_fields if isinstance(value := getattr(self, name), Section)]
        return [problem for part in sections for problem in part.contradictions()]


def measures_precision(settings: Settings) -> bool:
    """Whether a run measures how the number type of its model changes the trigger examples."""
    return settings.model.dtype != "float32" and settings.keys.precision


def intervenes(settings: Settings) -> bool:
    """Whether a run changes the coefficients of memories."""
    return settings.intervention.memories > 0


def corpus_sources(corpus: Corpus, split: str) -> tuple[list[str], bool]:
    """Returns the sources of a split, and whether train and validation are drawn from the same documents."""
    shared = corpus.dataset == EMBEDDED or not corpus.validation
    return (corpus.train if split == "train" or shared else corpus.validation), shared
