"""Random settings, models and degenerate corpora through every step, in one process: a result or a sentence, no traceback.

The seeds are fixed, so that a failure can be repeated: `FFKV_CASES=30 pytest tests/hostile/test_pipeline.py -k ordinary17`.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hostile.shown import show_all
from support import CONFIGS, FULL, detector_checkpoint, draw_nothing, prove_into, word_tokenizer
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.steps import Part, Work
from ffkv.branches.commands import has_parts, write
from ffkv.branches.registry import BRANCHES
from ffkv.branches.settings import Model, Settings, section
from ffkv.run.results.check import check_run

SHAPE = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_inner": 8, "vocab_size": 60, "n_positions": 32, "bos_token_id": 0,
         "eos_token_id": 0}  # fmt: skip
RELU = {"activation_function": "relu"}


def _dead(mlp: nn.Module) -> None:
    mlp.c_fc.bias.fill_(-100.0)


def _negative(mlp: nn.Module) -> None:
    mlp.c_fc.bias.fill_(-1.5)
    mlp.c_fc.weight.mul_(0.05)


def _constant(mlp: nn.Module) -> None:
    mlp.c_fc.bias.fill_(1.0)
    mlp.c_fc.weight.zero_()


def _equal_keys(mlp: nn.Module) -> None:
    mlp.c_fc.bias.fill_(0.1)
    mlp.c_fc.weight.copy_(mlp.c_fc.weight[:, :1].expand_as(mlp.c_fc.weight))


def _equal_values(mlp: nn.Module) -> None:
    mlp.c_proj.weight.copy_(mlp.c_proj.weight[:1].expand_as(mlp.c_proj.weight))


# What differs from `SHAPE`, what is done to a feed-forward layer, and to which layers.
Change = tuple[dict[str, object], Callable[[nn.Module], None] | None, slice]
EVERY, FIRST, LAST = slice(None), slice(0, 1), slice(-1, None)
DEGENERATE: dict[str, Change | None] = {
    "detector": None,  # words that no key detects are in most corpora
    "dead": (RELU, _dead, EVERY),
    "dead-first-layer": (RELU, _dead, FIRST),
    "dead-last-layer": (RELU, _dead, LAST),
    "never-positive": ({}, _negative, EVERY),
    "never-positive-first-layer": ({}, _negative, FIRST),
    "constant": ({}, _constant, EVERY),
    "equal-keys": ({}, _equal_keys, EVERY),
    "equal-values": ({}, _equal_values, EVERY),
    "one-layer": ({"n_layer": 1}, None, EVERY),
    "one-memory": ({"n_inner": 1}, None, EVERY),
    "one-layer-of-one-memory": ({"n_layer": 1, "n_inner": 1, **RELU}, None, EVERY),
    "wide": ({"n_embd": 32}, None, EVERY),
}


def degenerate_checkpoint(folder: Path, kind: str) -> Path:
    """A tiny GPT-2 of a kind."""
    if (change := DEGENERATE[kind]) is None:
        return detector_checkpoint(folder)
    shape, alter, layers = change
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**{**SHAPE, **shape}))
    with torch.no_grad():
        for parameter in model.parameters():
            bias = parameter.ndim == 1
            parameter.copy_(torch.randn_like(parameter) * (0.3 if bias else 0.5) + (parameter if bias else 0))
        for block in model.transformer.h[layers] if alter else ():
            alter(block.mlp)
    model.save_pretrained(folder)
    word_tokenizer(["<bos>", *[f"w{number}" for number in range(59)]]).save_pretrained(folder)
    return folder


# Of ordinary models, and as many of degenerate ones: enough that each kind and each corpus has its turn. `make test-failures`
# tries 40 of each.
CASES = int(os.environ.get("FFKV_CASES", "13"))
CHECKED = 5  # every fifth case is checked as a whole
SHOWN = 19  # the nineteenth and others are shown in every way, which takes a quarter of a minute
KINDS = {"ordinary": sorted(CONFIGS), "degenerate": [*DEGENERATE]}
KNOWN = [f"w{number}" for number in range(1, 40)]


def one_word(random):
    return [" ".join(["w1"] * number) for number in range(1, 12)]


def twins(random):
    return ["w1 w2 w3"] * 20 + ["w4 w5"]


def two_sentences(random):
    return ["w1 w2", "w3 w4 w5"]


def one_long_line(random):
    return [" ".join(random.choice(KNOWN, 80)), "w1 w2"]


def no_letters(random):
    return ["... ,, !!", "1 2 3 4", "- - -", "( )"] * 5


def unknown_words(random):
    return [" ".join("x" * int(length) for length in random.integers(1, 9, 5)) for _ in range(20)]


def one_content_word(random):
    """Two lines share their only content word."""
    return [f"aa bb {'xylophone' if number < 2 else 'cc'} d{number}" for number in range(20)]


def odd_characters(random):
    pieces = ["\u202e", "\x00", "\x1b[2J", "\ufeff", "e\u0301", "\U0001f600", "\u3000", "w1", "<script>", "\x85"]
    return [" ".join(random.choice(pieces, 6)) for _ in range(20)]


def blanks(random):
    return ["", "   ", "\t", "w1 w2", "", "w3 w4 w5", "", "w6 w7"]


def nothing(random):
    return ["", " "]


def ordinary(random):
    return [" ".join(random.choice(KNOWN, int(random.integers(2, 20)))) for _ in range(30)]


OUTCOMES: list[str] = []
CORPORA = [one_word, twins, two_sentences, one_long_line, no_letters, unknown_words, one_content_word, odd_characters, blanks,
           nothing, ordinary]  # fmt: skip


@pytest.fixture(scope="session")
def models(proven, tmp_path_factory):
    """Model stage folders of ordinary and of degenerate models, by kind."""
    made = {}

    def get(kind: str):
        if kind in CONFIGS:
            return proven(kind)
        if kind not in made:
            folder = tmp_path_factory.mktemp("degenerate")
            made[kind] = prove_into(folder, degenerate_checkpoint(folder / "checkpoint", kind))
        return made[kind]

    return get


def random_settings(random, folder) -> Settings:
    """Settings near their limits, of which some contradict each other."""

    def pick(*values):
        return values[random.integers(len(values))]

    values = {
        "corpus": {
            "dataset": "files",
            "train": [str(folder / "train.txt")],
            "validation": [str(folder / "validation.txt")],
            "txt_document": pick("line", "line", "line", "paragraph", "file"),
            "splitter": pick("sentence", "line", "document"),
            **pick({"pretokenized": True}, {}, {"detokenize": True}),
            "long_sentences": pick("windows", "windows", "drop"),
            "bos": pick("auto", "always", "always", "never"),
            "deduplicate": pick(True, False, False),
            "limit": pick(0, 0, 0, 0, 0, 7),
        },
        "batches": {"tokens": pick(16, 256, 1024), "block_sentences": pick(9, 64, 2048)},
        "triggers": {
            "per_key": pick(1, 3, 10),
            "one_prefix_per_sentence": pick(True, False),
            "shared_prefixes_compete": pick("once", "once", "per_sentence"),
            "include_empty_prefix": pick(True, False, False),
            "negative": pick(True, False),
        },
        "prefixes": {
            "count": pick(1, 5, 10**9),
            "sample": pick("sentence", "prefix"),
            "extra_states": pick([], ["x"], ["x", "factor"]),
        },
        "keys": {
            "per_layer": pick(1, 5, 10**9),
            "pattern_triggers": pick(3, 25),
            "minimum_prefixes": pick(2, 3),
            "false_discovery_rate": pick(1e-9, 0.05, 0.999),
            "background_prefixes": 100,
            "removal_triggers": pick(1, 4),
        },
        "values": {
            "projection": pick("head", "head", "unembedding"),
            "top_tokens": pick(1, 50, 100_000),
            "predictive": pick(1, 10_000),
            "bins": pick(1, 1000),
        },
        "composition": {"mass": pick(1e-6, 0.9, 1.0), "short_prefix": pick(1, 5, 10**9)},
        "refinement": {"changes": pick(1, 10_000)},
        "intervention": {
            "memories": pick(0, 0, 1, 2),
            "examples": pick(1, 2, 10_000),
            "scales": pick([0.0], [0.0, -100.0, 100.0]),
            "tokens": pick(1, 100_000),
            "controls": pick(1, 3),
            "directions": pick(0, 1),
            "similar": pick(0, 2, 10_000),
            "similar_size": pick(0.1, 1.0),
            "silent_below": pick(0.0, 0.05, 1.0),
            "top_k": pick([0], [10**9, 1]),
            "top_k_prefixes": pick(1, 3),
        },
        "roles": {"threshold": pick(0.0, 0.5, 0.999), "ignored": pick(1e-9, 0.01, 1.0), "tokens": pick(1, 100_000)},
        "report": {"cards": pick(0, 1, 24), "card_triggers": pick(1, 10_000), "paper_curves": pick(True, False)},
    }
    parts = {name: section(type(getattr(Settings(), name)), **part) for name, part in values.items()}
    return Settings().model_copy(
        update={**parts, "seed": int(random.integers(2**32)), "shards": pick(1, 1, 2), "layer_groups": pick(1, 1, 2)}
    )


def begin(folder, model) -> None:
    """Gives the folder of a run the model step's folder and its values."""
    with atomic(folder / "model") as own, atomic(folder / "values.h5") as values:
        shutil.copytree(model, own)
        shutil.copy(model.parent / "values.h5", values)


def run_all(folder, settings: Settings) -> None:
    """Every step of a run, as the rules call them; the folder has its model, its values and its texts already."""
    model = folder / "model"
    settings = settings.model_copy(update={"model": section(Model, checkpoint="somewhere")})
    with atomic(folder / "settings.json") as path:
        path.write_text(settings.model_dump_json())
    train, validation = (folder / f"corpus/{split}.h5" for split in ("train", "validation"))
    for split, path in (("train", train), ("validation", validation)):
        ffkv.encode_corpus(model, split, settings.corpus, path)
    shards = [Part(number, settings.shards) for number in range(settings.shards)]
    paths = [folder / f"triggers/{part.index}.h5" for part in shards]
    for path, part in zip(paths, shards):
        ffkv.write_triggers(
            path, ffkv.find_triggers(model, train, settings.triggers, settings.batches, Work("cpu", part=part))
        )
    triggers, prefixes = folder / "triggers.h5", folder / "sampled_prefixes.h5"
    ffkv.merge_triggers(paths, triggers)
    paths = [folder / f"sampled_prefixes/{part.index}.h5" for part in shards]
    for path, part in zip(paths, shards):
        ffkv.sample_prefixes(
            model, validation, path, settings.prefixes, settings.batches, settings.seed, Work("cpu", part=part)
        )
    ffkv.merge_sampled_prefixes(paths, model, prefixes)

    work = Work("cpu", batch_tokens=settings.batches.tokens)
    for branch in BRANCHES.values():
        for name, step in branch.steps.items() if branch.is_in(settings) else ():
            for group in range(settings.layer_groups) if has_parts(step) else [None]:
                made = ffkv.step(f"{branch.name} {name}", folder, group=group, work=work)
                paths = [folder / each.path.format(group=group) for each in step.writes]
                write(step, made, paths if has_parts(step) else [folder / branch.name])


@pytest.mark.slow
@pytest.mark.many
@pytest.mark.parametrize(
    ("family", "case"),
    [(family, case) for family in KINDS for case in range(CASES)],
    ids=[f"{family}{case}" for family in KINDS for case in range(CASES)],
)
def test_a_random_run_ends_in_a_result_or_in_a_sentence(models, tmp_path, family, case):
    random, kinds = np.random.default_rng([case, len(family)]), KINDS[family]
    kind, corpus = kinds[case % len(kinds)], CORPORA[case % len(CORPORA)]
    folder = tmp_path / "results/fuzz"
    begin(folder, models(kind))
    for split in ("train", "validation"):
        (tmp_path / f"{split}.txt").write_text("\n".join(corpus(random)), errors="surrogatepass")
    settings = random_settings(random, tmp_path)
    try:
        run_all(folder, settings)
    except UserError as error:
        assert str(error)
        OUTCOMES.append(str(error)[:80])
        return
    OUTCOMES.append("a result")
    if case % CHECKED == 0:
        assert check_run(folder)[1] == []
    if case % SHOWN == SHOWN - 1:
        refused = show_all(folder)
        page = tmp_path / "reports/fuzz/index.html"
        assert page.exists(), refused
        assert page.stat().st_size < 20 * 2**20


@pytest.mark.slow
@pytest.mark.many
@pytest.mark.parametrize(
    ("kind", "other"),
    [("equal-values", "wide"), ("constant", "dead"), ("one-layer", "never-positive")]
    if FULL
    else [("constant", "dead")],
)
def test_unlike_runs_are_shown_beside_each_other(models, tmp_path, monkeypatch, kind, other):
    """Of equal counts and another width; one in which nothing fires; of other numbers of layers. Figures are drawn with `FULL`."""
    if not FULL:
        draw_nothing(monkeypatch)
    text = "\n".join(ordinary(np.random.default_rng(0)))
    for split in ("train", "validation"):
        (tmp_path / f"{split}.txt").write_text(text)
    corpus = {
        "dataset": "files",
        "train": [str(tmp_path / "train.txt")],
        "validation": [str(tmp_path / "validation.txt")],
    }
    few = {
        "keys": {"per_layer": 3, "background_prefixes": 100},
        "prefixes": {"count": 20},
        "intervention": {"memories": 1},
    }
    for name in (kind, other):
        begin(tmp_path / "results" / name, models(name))
        run_all(
            tmp_path / "results" / name,
            Settings.model_validate(
                {"corpus": corpus, "triggers": {"per_key": 5, "include_empty_prefix": True}, **few}
            ),
        )
    refused = show_all(tmp_path / "results" / kind, tmp_path / "results" / other)
    known = ("different shapes", "report.control", "No analysed key", "in these readings only")
    assert all(any(name in each for name in known) for each in refused)


@pytest.mark.many
def test_most_random_runs_end_in_a_result():
    """Otherwise the cases above say little. Runs after them, in the same process."""
    if len(OUTCOMES) == 2 * CASES:
        assert OUTCOMES.count("a result") > CASES
