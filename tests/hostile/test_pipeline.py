"""Random settings, models and degenerate corpora through every step, in one process: a result or a sentence, no traceback.

The seeds are fixed, so that a failure can be repeated: `FFKV_CASES=40 pytest tests/hostile/test_pipeline.py -k ordinary17`.
"""

import os
import shutil

import numpy as np
import pytest
import torch
from hostile.degenerate import DEGENERATE, degenerate_checkpoint
from hostile.shown import show_all
from support import CONFIGS, FULL, prove_into

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.files.atomic import atomic
from ffkv.base.parts import Part
from ffkv.base.settings import Model, Settings, section
from ffkv.base.steps import Work
from ffkv.branches.registry import BRANCHES
from ffkv.branches.values.projections import write_projections
from ffkv.run.results.check import check_run

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


@pytest.fixture(autouse=True)
def one_thread():
    """Threads only slow down models as small as these."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
    model, values = folder / "model", folder / "values.h5"
    settings = settings.model_copy(update={"model": section(Model, checkpoint="somewhere")})
    with atomic(folder / "settings.json") as path:
        path.write_text(settings.model_dump_json())
    train, validation = (folder / f"corpus/{split}.h5" for split in ("train", "validation"))
    for split, path in (("train", train), ("validation", validation)):
        ffkv.encode_corpus(model, split, settings.corpus, path)
    shards = [Part(number, settings.shards) for number in range(settings.shards)]
    groups = [Part(number, settings.layer_groups) for number in range(settings.layer_groups)]
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

    def write(name, part, table):
        path = folder / name / f"{part.index}.parquet"
        tables.write(table, path)
        return path

    seed, written = settings.seed, {}
    for part in groups:
        work = Work("cpu", batch_tokens=settings.batches.tokens, part=part)
        patterns, by_prefix = ffkv.find_patterns(triggers, train, settings.keys, seed, Work(part=part))
        removal = ffkv.remove_tokens(model, triggers, train, settings.keys, seed, work)
        projections, by_memory = ffkv.project_values(model, values, triggers, settings.values, work)
        write_projections(folder / f"values/projections/{part.index}.h5", projections)
        composed = ffkv.measure_composition(
            model,
            prefixes,
            folder / f"values/projections/{part.index}.h5",
            validation,
            settings.composition,
            work,
        )
        refined = ffkv.measure_refinement(model, prefixes, work)
        found = {"keys/patterns": patterns, "keys/by_prefix": by_prefix, "keys/removal": removal}
        found |= {"values/by_memory": by_memory, "composition/by_prefix": composed, "refinement/by_prefix": refined}
        if settings.intervention.memories:
            changed = ffkv.measure_interventions(
                model, triggers, folder / f"values/projections/{part.index}.h5", prefixes, train, validation,
                settings.intervention, seed, work,
            )  # fmt: skip
            found |= {f"intervention/{name}": table for name, table in changed._asdict().items()}
        projected = folder / f"values/projections/{part.index}.h5"
        roles = ffkv.measure_roles(model, values, projected, triggers, train, settings.roles, seed, Work(part=part))
        found |= {f"roles/{table.name}": made for table, made in zip(BRANCHES["roles"].tables, roles, strict=True)}
        for name, table in found.items():
            written.setdefault(name, []).append(write(name, part, table))
    summaries = {
        "keys": ffkv.summarize_keys(
            triggers, *(written[f"keys/{name}"] for name in ("patterns", "by_prefix", "removal"))
        ),
        "values": ffkv.summarize_values(written["values/by_memory"], model, triggers, train, settings.values, seed),
        "composition": ffkv.summarize_composition(written["composition/by_prefix"], model, settings.composition),
        "refinement": ffkv.summarize_refinement(
            written["refinement/by_prefix"], model, prefixes, validation, settings.refinement, seed
        ),
    }
    if settings.intervention.memories:
        names = [written[f"intervention/{name}"] for name in ("by_prefix", "by_memory", "kept")]
        projections = [folder / f"values/projections/{part.index}.h5" for part in groups]
        summaries["intervention"] = ffkv.summarize_interventions(*names, model, projections)
    for name, frames in summaries.items():
        for table, frame in frames.items():
            tables.write(frame, folder / name / f"{table}.csv")


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
        show_all(folder)
        assert (tmp_path / "reports/fuzz/index.html").stat().st_size < 20 * 2**20


@pytest.mark.slow
@pytest.mark.many
@pytest.mark.parametrize(
    ("kind", "other"),
    [("equal-values", "wide"), ("constant", "dead"), ("one-layer", "never-positive")]
    if FULL
    else [("constant", "dead")],
)
def test_unlike_runs_are_shown_beside_each_other(models, tmp_path, kind, other):
    """Of equal counts and another width; one in which nothing fires; of other numbers of layers."""
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
    assert all("different shapes" in each or "report.control" in each or "No analysed key" in each for each in refused)


@pytest.mark.many
def test_most_random_runs_end_in_a_result():
    """Otherwise the cases above say little. Runs after them, in the same process."""
    if len(OUTCOMES) == 2 * CASES:
        assert OUTCOMES.count("a result") > CASES
