"""Every setting: its name, type, default, limits and meaning. The only code that knows defaults.

The JSON schema in `workflow/schemas/` and the page `docs/settings.md` are written from these models (`ffkv settings`),
and the command line takes its options from them.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from ffkv.errors import UserError
from ffkv.settings.messages import problems_of, regular_expression

EMBEDDED = "embedded"
LARGEST = 10**9  # of whole numbers that have no limit of their own: nothing that ffkv counts or allocates overflows
Globs = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=str | list[str]),
]
Pattern = Annotated[str, AfterValidator(regular_expression)]
Whole = Annotated[int, Field(le=LARGEST)]


class Section(BaseModel):
    """A part of the settings. Unknown keys and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @field_validator("*")
    @classmethod
    def _without_nul(cls, value: Any) -> Any:
        """No command line and no file name can hold a NUL."""
        if any(isinstance(text, str) and "\0" in text for text in (value if isinstance(value, list) else [value])):
            raise ValueError("must be text without NUL")
        return value


class Model(Section):
    """Which language model is read."""

    checkpoint: str = Field(
        EMBEDDED,
        min_length=1,
        description="A local folder (of transformers, or of fairseq: model.pt and dict.txt), a hub id, or `embedded`: the small GPT-2 that the workflow trains.",
    )
    revision: str = Field(
        "main", min_length=1, description="The hub's branch, tag or commit. Pythia's training steps are revisions."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "float32",
        description="Type of the weights; `auto` takes the checkpoint's own. Where it is not float32, the report says what that does to trigger examples.",
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="`cpu`, `cuda`, `cuda:1`; `auto` takes a GPU where there is one.",
    )
    gpus: int = Field(
        0,
        ge=0,
        le=64,
        description="GPUs that each job of the activation passes asks a cluster for. Changes no number by itself: `device` says what is used.",
    )
    second_matrix: Pattern = Field(
        "",
        description="Regular expression for the second feed-forward matrix's name inside its block, for model code whose names ffkv does not know; empty for the known names. Banks of experts are found without it.",
    )
    trust_remote_code: bool = Field(
        False, description="Run model code that the hub repository brings. Off unless you trust it."
    )


class Embedded(Section):
    """The model that the workflow trains itself, and its corpus. Used where `model.checkpoint` is `embedded`."""

    layers: int = Field(6, ge=1, le=48, description="Number of blocks.")
    width: Whole = Field(160, ge=8, description="Size of the residual stream.")
    heads: Whole = Field(4, ge=1, description="Attention heads; must divide the width.")
    vocabulary: Whole = Field(4096, ge=300, description="Size of the byte-level BPE vocabulary.")
    context: Whole = Field(128, ge=8, description="Longest input in tokens.")
    steps: Whole = Field(2600, ge=1, description="Training steps.")
    batch_tokens: Whole = Field(512, ge=64, description="Tokens a training step sees.")
    learning_rate: float = Field(
        1e-3, gt=0, le=1, description="Peak learning rate of AdamW, with warm-up and cosine decay."
    )


class Corpus(Section):
    """Which text is read, and how it becomes sentences of tokens."""

    dataset: str = Field(
        EMBEDDED, min_length=1, description="`embedded` (documentation of the Python library), `files`, or a hub id."
    )
    config: str = Field(
        "default", min_length=1, description="The hub data set's configuration; `default` takes its default one."
    )
    revision: str = Field("main", min_length=1, description="The hub data set's branch, tag or commit.")
    train: Globs = Field(
        ["train"],
        min_length=1,
        description="Hub: the split's name. Files: one or more paths or globs (txt, jsonl, csv, parquet; also .gz).",
    )
    validation: Globs = Field(
        [], description="The same for validation. Empty: a share of the train documents is held out."
    )
    validation_share: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Share of documents held out, by a hash of their name, where `validation` is empty.",
    )
    text_field: str = Field("text", min_length=1, description="The field that holds the text.")
    txt_document: Literal["line", "paragraph", "file"] = Field(
        "line",
        description="What is a document in a txt file: a `line` (WikiText), a `paragraph` (wrapped prose, ended by an empty line), or the whole `file`.",
    )
    splitter: Literal["sentence", "line", "document"] = Field(
        "sentence", description="What counts as a sentence: spaCy's rule-based sentences, a line, or a whole document."
    )
    pretokenized: bool = Field(
        False, description="The text is already split by blanks, like WikiText: words are what stands between blanks."
    )
    long_sentences: Literal["windows", "drop"] = Field(
        "windows", description="What becomes of a sentence longer than the model's context."
    )
    bos: Literal["auto", "always", "never"] = Field(
        "auto", description="Put the beginning-of-sequence token first; `auto` does what the tokenizer does."
    )
    deduplicate: bool = Field(True, description="Identical sentences count once; how many stood for each is kept.")
    limit: Whole = Field(0, ge=0, description="Read at most so many documents a split; 0 reads all.")


class Activations(Section):
    """How batches are cut. Fixed blocks make every number independent of the number of shards."""

    batch_tokens: Whole = Field(1024, ge=1, description="Tokens a batch holds, padding included. Bounds the memory.")
    block_sentences: Whole = Field(2048, ge=1, description="Sentences that are sorted by length together.")


class Triggers(Section):
    """Trigger examples of every key (paper section 3.1)."""

    per_key: int = Field(
        50, ge=1, le=10_000, description="t: how many of the highest coefficients are kept for each key."
    )
    one_prefix_per_sentence: bool = Field(
        True,
        description="Only the best position of each sentence, as in the authors' code; false takes every prefix, as in the paper's text.",
    )
    include_empty_prefix: bool = Field(
        False, description="Let the prefix that is only BOS compete, as in the authors' code."
    )
    negative: bool = Field(True, description="Keep the most negative coefficients too, where the model has them.")


class Prefixes(Section):
    """The sample of validation prefixes behind composition and refinement (paper section 5)."""

    count: Whole = Field(4000, ge=1, description="How many prefixes are drawn, without repetition.")
    sample: Literal["sentence", "prefix"] = Field(
        "sentence",
        description="`sentence`: a random sentence, then a random position (the authors' code); `prefix`: uniform over all prefixes.",
    )
    keep: list[Literal["x", "factor"]] = Field(
        [],
        description="Further states to store: `x`, the FF input; `factor`, the factor of a norm after the layer. No step reads them.",
    )


class Keys(Section):
    """Patterns in trigger examples, and token removal (paper section 3.2)."""

    per_layer: Whole = Field(100, ge=1, description="Random keys a layer that are analysed.")
    pattern_triggers: Whole = Field(25, ge=3, description="Trigger examples a key that patterns are sought in.")
    minimum_prefixes: Whole = Field(3, ge=2, description="A pattern stands in at least so many of them.")
    false_discovery_rate: float = Field(
        0.05, gt=0, lt=1, description="Benjamini-Hochberg level, by layer and family of patterns."
    )
    background_prefixes: Whole = Field(
        20_000, ge=100, description="Random train prefixes that say what is frequent by chance."
    )
    removal_triggers: Whole = Field(50, ge=1, description="Trigger examples a key that tokens are removed from.")


class Values(Section):
    """What each value predicts (paper section 4)."""

    projection: Literal["head", "unembedding"] = Field(
        "head",
        description="`head`: the model's own head, final norm included; `unembedding`: the output embedding alone.",
    )
    top_tokens: Whole = Field(50, ge=1, description="Tokens kept for each value.")
    predictive: Whole = Field(100, ge=1, description="How many values of highest top probability are looked at.")
    bins: Whole = Field(8, ge=1, description="Bins of top probability (figure 6).")


class Composition(Section):
    """How memories of a layer compose (paper section 5.1)."""

    mass: float = Field(
        0.9,
        gt=0,
        le=1,
        description="Share of the summed contribution |m|·‖v‖ that the effective number of memories carries.",
    )
    short_prefix: Whole = Field(5, ge=1, description="A prefix of fewer words is called short.")


class Refinement(Section):
    """How predictions are refined from layer to layer (paper section 5.2)."""

    changes: Whole = Field(100, ge=1, description="Sampled changes of prediction in the last layer.")


class Report(Section):
    """The HTML report."""

    title: str = Field("Feed-forward layers as key-value memories", min_length=1, description="Its heading.")
    cards: Whole = Field(24, ge=0, description="Keys shown as cards, spread over the layers.")
    card_triggers: Whole = Field(10, ge=1, description="Trigger examples a card shows.")
    paper_curves: bool = Field(True, description="Draw the paper's curve beside ours.")


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
    report: Report = Report()
    seed: int = Field(0, ge=0, lt=2**32, description="Seed of every random choice.")
    shards: int = Field(
        1, ge=1, le=10_000, description="Parts that the corpus passes are cut into, each a job. Changes no number."
    )
    layer_groups: int = Field(
        1,
        ge=1,
        le=1000,
        description="Parts that the layers are cut into, each a job of every branch. Changes no number.",
    )


def section(model: type[Section], **values: Any) -> Section:
    """One section from given values, checked as in a settings file.

    Raises:
        UserError: as `resolve`.
    """
    if problems := problems_of(model, values):
        raise UserError("\n".join(problems))
    return model(**values)


def corpus_sources(corpus: Corpus, split: str) -> tuple[list[str], bool]:
    """Where a split's documents come from, and whether train and validation share those documents."""
    shared = corpus.dataset == EMBEDDED or not corpus.validation
    return (corpus.train if split == "train" or shared else corpus.validation), shared
