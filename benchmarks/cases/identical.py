"""Prefixes that several sentences begin with, read once, beside the pass that reads them in each sentence. Real text."""

from pathlib import Path
from typing import Any

from benchmarks.inputs import SMALL, make_model, prepare_model
from benchmarks.measure import ROOT, Comparison, Unmeasured, Work, cpu_ratio, same_work
from ffkv.activations.triggers import find_triggers
from ffkv.base.settings import EMBEDDED, Activations, Triggers
from ffkv.base.settings import Corpus as CorpusSettings
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import Corpus, read_corpus, write_corpus
from ffkv.corpus.document import Document
from ffkv.corpus.embedded.tokenizer import train_tokenizer
from ffkv.corpus.encode import encode
from ffkv.corpus.sources import read_documents
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.load import load

WIKITEXT = ROOT.parent / "shared/wikitext2/valid.txt"
INSTRUCTIONS = (
    "Read the following sentence from the documentation of a programming language and continue it in the same style:",
    "You are a helpful assistant. A user who learns to program asks what this sentence of the manual means:",
    "Below is a sentence that a program has taken from a large collection of texts. Say what comes next:",
    "The next line is from the standard library of a programming language, written by its authors for its users:",
)
TEXTS = {
    "embedded": CorpusSettings(dataset=EMBEDDED),
    "instructions": CorpusSettings(dataset=EMBEDDED, splitter="line"),
    "wikitext": CorpusSettings(dataset="files", train=[str(WIKITEXT)], validation=[str(WIKITEXT)], pretokenized=True),
}


def once(scratch: Path, shape: list[int], text: str, documents: int) -> Work:
    """Each distinct prefix competes once."""
    return _pass(scratch, shape, text, documents, "once")


def each(scratch: Path, shape: list[int], text: str, documents: int) -> Work:
    """A prefix competes in every sentence that begins with it."""
    return _pass(scratch, shape, text, documents, "each")


def _pass(scratch: Path, shape: list[int], text: str, documents: int, identical: str) -> Work:
    folder = prepare_model(scratch, shape)
    loaded, corpus = load(folder, "cpu"), _read_text(scratch, shape, text, documents)
    settings = Triggers(identical_prefixes=identical)
    find_triggers(loaded, _read_text(scratch, shape, text, 2), settings, Activations())

    def work() -> dict[str, Any]:
        found = find_triggers(loaded, corpus, settings, Activations())
        distinct = len(CompetingPrefixes(corpus, once=True)) / len(CompetingPrefixes(corpus, once=False))
        return {"digest": str(found.prefixes), "tokens": len(corpus.tokens), "distinct": distinct}

    return work


def _read_text(scratch: Path, shape: list[int], text: str, documents: int) -> Corpus:
    """The first documents of a text, with a byte-level vocabulary of the model's size that is learnt from them."""
    if text == "wikitext" and not WIKITEXT.exists():
        raise Unmeasured("WikiText's validation split is not beside the project")
    path = scratch / "texts" / f"{text}-{documents}-{shape[3]}.h5"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        settings = TEXTS[text].model_copy(update={"limit": documents})
        read = [document for document in read_documents(settings, "train") if document.text.strip()]
        if text == "instructions":
            read = [_instruct(document) for document in read]
        tokenizer = train_tokenizer([document.text for document in read], shape[3], 128)
        encoded = encode(read, tokenizer, 127, settings)
        tokenizer_hash = read_anatomy(make_model(scratch, shape)).tokenizer_hash
        write_corpus(path, encoded, [0], settings.pretokenized, {"tokenizer_hash": tokenizer_hash})
    return read_corpus(path)


def _instruct(document: Document) -> Document:
    """A document each of whose lines follows an instruction, as a data set of prompts has them."""
    lines = [line.strip() for line in document.text.splitlines() if line.strip()]
    return Document(document.name, "\n".join(f"{INSTRUCTIONS[n % 4]} {line}" for n, line in enumerate(lines)))


COMPARISONS = [
    Comparison(
        "identical prefixes",
        f"{SMALL}, {documents:,} documents of {text}",
        same_work(__name__, ("each", "once"), shape=SMALL, text=text, documents=documents),
        cpu_ratio("once", "each"),
        limit,
        "times the CPU time of the pass in which each prefix of each sentence competes",
        rounds=3,
    )
    for text, documents, limit in ((EMBEDDED, 60, 1.0), ("wikitext", 1000, 1.0), ("instructions", 40, 0.9))
]
