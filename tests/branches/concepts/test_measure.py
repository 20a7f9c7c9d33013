"""From texts to tables: what is read, on models of several kinds; rules; planted memories; the choice of layers."""

import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import spacy
import torch

import ffkv
from ffkv.activations.trigger_file import NONE
from ffkv.base.errors import UserError
from ffkv.branches.concepts.activations import group_tasks, read_tasks
from ffkv.branches.concepts.draw import Task
from ffkv.branches.concepts.measure import choose_layers, measure_task, memory_rows
from ffkv.branches.concepts.null import Best
from ffkv.branches.concepts.rules import shares_of_examples, tasks_of_rules
from ffkv.branches.concepts.summarize import correct, summarize_curves, summarize_mixture, summarize_tasks
from ffkv.branches.concepts.tables import BEST, BY_LAYER, MEMORIES
from ffkv.branches.settings import Concept
from ffkv.corpus.corpus_file import read_corpus
from ffkv.corpus.rules import RULES, find_rules, label_tokens
from ffkv.model.tap.tap import observe

TEXTS = 120


def task(positive=None, document=None, length=None, rows=None, counted=None, name="t"):
    """A task; half of its texts are for training."""
    count = TEXTS if rows is None else len(rows)
    positive = np.random.default_rng(0).permutation(count) % 2 > 0 if positive is None else positive
    document = np.arange(count) if document is None else document
    length = np.full(count, 5) if length is None else length
    counted = np.ones(count, int) if counted is None else np.array(counted)
    return Task(name, "yes", rows or [], counted, positive, document, np.arange(count) % 4 < 2, length)


def its(**options):
    return Concept(labels="x.csv", **{"sizes": [1, 4], "shuffles": 99, "draws": 50, **options})


def texts_of(*lengths, seed=1):
    return [np.random.default_rng((seed, length)).integers(1, 50, length) for length in lengths]


def assert_states(loaded, own, found):
    """States of a task are those that the model has on each of its texts alone."""
    for text, (row, counted) in enumerate(zip(own.rows, own.counted.tolist(), strict=True)):
        states = observe(loaded.model, loaded.anatomy.layers, torch.from_numpy(row[None]), "myo")
        for layer, (m, r, each) in enumerate(zip(*found, states, strict=True)):
            # float32 in batches of other shapes
            expected = (each["m"], each["o"] - each["y"])
            for its, state in zip((m, r), expected, strict=True):
                largest = state[0, -counted:].amax(0).numpy()
                np.testing.assert_allclose(its[text], largest, rtol=1e-4, atol=1e-5, err_msg=f"{text} {layer}")


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mixtral", "gemma2"])
@pytest.mark.parametrize("largest", [False, True])
def test_coefficients_and_residuals_are_those_of_the_model(load_kind, kind, largest):
    """Texts of several lengths in one batch, one of them the beginning of another one, give what each gives alone."""
    loaded, rows = replace(load_kind(kind), batch_tokens=20), texts_of(3, 9, 5, 7)
    rows.append(rows[1][:4])
    own = task(rows=rows, counted=[len(row) - 1 for row in rows] if largest else None)
    (found,) = read_tasks(loaded, [own])
    assert_states(loaded, own, found)


@pytest.mark.parametrize("kind", ["gpt2", "mixtral"])
@pytest.mark.parametrize("largest", [False, True])
def test_tasks_that_share_texts_are_read_in_one_pass(load_kind, kind, largest):
    """The model sees each text once. In two tasks, other tokens of the same text may count."""
    loaded, (a, b, c, d, e) = load_kind(kind), texts_of(5, 6, 7, 8, 9)
    tasks = [
        task(rows=[a, b, c, d], counted=[1, 2, 3, 1] if largest else None, name="first"),
        task(rows=[d, c, e, b[:3], c], counted=[7, 1, 1, 1, 2] if largest else None, name="second"),
    ]
    seen = []

    def count(module, args, kwargs):
        ids = kwargs.get("input_ids", *args[:1])
        seen.extend(ids.tolist())

    with loaded.model.register_forward_pre_hook(count, with_kwargs=True):
        together = [*read_tasks(loaded, tasks)]
    assert len(seen) == 5 and {tuple(row[:5]) for row in seen} == {tuple(row[:5].tolist()) for row in (a, b, c, d, e)}
    for own, found in zip(tasks, together, strict=True):
        assert_states(loaded, own, found)
        for states, alone in zip(found, *read_tasks(loaded, [own]), strict=True):
            for one, other in zip(states, alone, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_groups_are_of_neighbours_that_share_texts_and_are_bounded():
    a, b, c, d, e, f = texts_of(3, 4, 5, 6, 7, 8)
    rows = {"one": [a, b], "two": [b, c], "begins": [c[:2], d], "other": [e], "same": [e, a], "again": [a, f]}
    tasks = [task(rows=own, name=name) for name, own in rows.items()]

    def groups(most):
        return [[own.name for own in group] for group in group_tasks(tasks, most)]

    assert groups(100) == [["one", "two", "begins"], ["other", "same", "again"]]
    assert groups(5) == [["one", "two"], ["begins"], ["other", "same", "again"]]
    assert groups(4) == [["one", "two"], ["begins"], ["other", "same"], ["again"]]
    assert groups(1) == [[name] for name in rows]  # a task alone may have more


def test_tables_of_tasks_that_share_texts_are_those_of_each_alone(tiny, tmp_path, capsys):
    """Two labels of the same texts, in files of their own, and texts that no other file has. Files of three labels are told, one per line."""
    run, options = ffkv.open(tiny / "results/tiny"), {"texts": 80, "sizes": [1, 4], "shuffles": 19, "draws": 20}
    told = {"a": lambda n: n % 2, "b": lambda n: n // 2 % 2, "c": lambda n: n % 2}
    for name, label in told.items():
        lines = [f"the name {n + 100 * (name == 'c')} is,{label(n)}" for n in range(80)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *lines]))
    for name in "de":
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *(f"the name {n},{n % 3}" for n in range(80))]))
    together = ffkv.concepts(run, str(tmp_path / "*.csv"), device="cpu", **options)
    first, d, e = (line for line in capsys.readouterr().err.splitlines() if "labels:" in line or "Left" in line)
    assert first.endswith("3 of 5 tasks are measured. Left out:") and d.startswith("  d: ") and e.startswith("  e: ")
    for name in told:
        alone = ffkv.concepts(run, str(tmp_path / f"{name}.csv"), device="cpu", **options)
        for table in ("concept_tasks", "concept_layers", "concept_memories"):
            found, own = together[table], alone[table]
            found = found[found["task"].str.endswith(f"/{name}")].reset_index(drop=True)
            left_out = {"task", "concept", "q"}  # names, and what depends on the other tasks
            columns = [column for column in own if column not in left_out]
            pd.testing.assert_frame_equal(found[columns], own[columns], check_dtype=False, rtol=1e-3, atol=1e-5)


def test_states_of_a_group_are_gone_before_the_next_one_is_read(load_kind):
    loaded, rows = load_kind("gpt2"), texts_of(3, 4, 5)
    groups = group_tasks([task(rows=rows[:1]), task(rows=rows[1:2])], 9)
    states, kept = (each for group in groups for each in read_tasks(loaded, group)), []
    for m, _ in states:
        assert not any(each() is not None for each in kept)
        kept.append(weakref.ref(m[0].base))
        del m, _
    assert len(kept) == 2


def planted():
    """Two layers of noise. In layer 1, memory 7 fires on the label, and memory 3 as well, but not always."""
    generator, own = np.random.default_rng(2), task()
    m = [np.maximum(generator.normal(size=(TEXTS, 20)), 0).astype(np.float32) for _ in range(2)]
    r = [generator.normal(size=(TEXTS, 6)).astype(np.float32) for _ in range(2)]
    m[1][:, 7] = own.positive
    m[1][:, 3] += own.positive
    return own, m, r


@pytest.fixture(scope="module")
def found():
    own, m, r = planted()
    tables = measure_task(own, m, r, its(), 0)
    return [
        table.frame([{"task": "t", "examples": np.nan, **row} for row in rows])
        for table, rows in zip((BY_LAYER, BEST, MEMORIES), tables)
    ]


def test_a_planted_memory_is_first_and_separates_the_label(found):
    by_layer, best, memories = found
    first = memories[memories["rank"] == 0].set_index("layer")
    assert first.loc[1, "memory"] == 7 and first.loc[1, "auc"] == 1
    assert memories[(memories["layer"] == 1) & (memories["rank"] == 1)]["memory"].tolist() == [3]
    own = best[(best["features"] == "memories") & (best["layer"] == -1)]
    assert set(own["feature"]) == {7} and set(own["in_layer"]) == {1} and (own["auc"] == 1).all()
    assert own["p"].tolist() == [0.01, 0.01] and own["tries"].tolist() == [2, 40]
    chosen = by_layer[by_layer["chosen"] & (by_layer["features"] == "memories")]
    assert chosen["layer"].tolist() == [1, 1] and (chosen["auc"] == 1).all() and (chosen["accuracy"] == 1).all()


def test_every_kind_of_features_is_beside_it_and_noise_separates_nothing(found):
    by_layer = found[0]
    sizes = by_layer.groupby("features")["size"].unique().map(list).to_dict()
    assert sizes == {"memories": [1, 4], "residual": [1, 4], "directions": [1, 4], "whole": [6]}
    noise = by_layer[(by_layer["features"] != "memories") | (by_layer["layer"] == 0)]
    assert noise["auc"].between(0.25, 0.75).all()  # 60 texts: a standard error of 0.075
    assert (noise["low"] <= noise["auc"]).all() and (noise["auc"] <= noise["high"]).all()


def test_the_same_seed_gives_the_same_rows_in_any_number_of_processes(found):
    own, m, r = planted()
    assert measure_task(own, m, r, its(), 0) == measure_task(own, m, r, its(), 0, processes=2)


def test_the_layer_is_chosen_without_the_test_half():
    rows = [
        {"features": "memories", "size": 1, "layer": layer, "validation": validation, "auc": auc}
        for layer, (validation, auc) in enumerate([(np.nan, 1.0), (0.6, 0.9), (0.9, 0.2), (0.9, 0.8)])
    ]
    assert [row["chosen"] for row in choose_layers(rows)] == [False, False, True, False]


def test_two_concepts_in_one_memory_are_counted_as_two(found):
    """Memory 7 fires on both labels, memory 3 on the first one. Noise separates a task in at most 5 % of layers."""
    own, m, r = planted()
    m[1][:, 3] -= own.positive
    (*_, rows) = measure_task(own, m, r, its(), 1)
    second = MEMORIES.frame([{"task": "b", "examples": 0.25, **row} for row in rows])
    memories = pd.concat([found[2].assign(task="a", examples=0.5), second])
    mixture = summarize_mixture(memories, [20, 20])
    assert mixture["several"].tolist() == [0, 1 / 20] and mixture["any"].tolist() == [0, 2 / 20]
    assert np.isnan(mixture["tasks"][0]) and mixture["tasks"][1] == 1.5
    assert np.isnan(mixture["examples"][0]) and mixture["examples"][1] == 0.5  # of equal AUCs the first
    low = memories.assign(examples=memories["examples"].where(memories["task"] == "b"), auc=1 - memories["auc"])
    assert np.isnan(
        summarize_mixture(low, [20, 20])["examples"]
    ).all()  # those of the only rule have smaller coefficients
    every = memories[memories["layer"] == 1].set_index(["task", "memory"])
    assert every.loc[("b", 7), "alone"] and not every["alone"].get(("b", 3), False)


def test_a_memory_that_is_low_on_the_label_separates_it_too():
    """Its AUC is below 0.5."""
    best = Best(0, 3, 1.0, np.full(99, 0.7), np.array([0.05, 0.5, 0.95]))
    rows = memory_rows(0, np.array([2, 1, 0]), np.array([-0.9, 0.0, 0.9]), best)
    assert [(row["memory"], row["rank"], bool(row["alone"])) for row in rows] == [
        (0, 2, True),
        (1, 1, False),
        (2, 0, True),
    ]


def test_summaries(found):
    by_layer, best, _ = found
    nulls = correct(best)
    assert (nulls["q"] >= nulls["p"]).all()
    curves = summarize_curves(by_layer).set_index(["features", "size"])
    kinds = ("memories", "residual", "directions")
    assert curves.index.tolist() == [*((kind, size) for kind in kinds for size in (1, 4)), ("whole", 6)]
    chosen = by_layer[by_layer["chosen"]].set_index(["features", "size"])
    assert curves["auc"].equals(chosen.loc[curves.index, "auc"]) and (curves["tasks"] == 1).all()
    two = summarize_curves(by_layer[::-1].loc[by_layer.index[::-1].repeat(2)])
    assert two["error"].to_numpy() == pytest.approx(curves["error"].to_numpy() / 2**0.5)
    names = [
        "concept",
        "positive",
        "train",
        "test",
        "positives",
        "documents",
        "tokens",
        "length_auc",
        "examples",
        "left_out",
    ]
    by_task = best[["task"]].drop_duplicates().assign(**dict.fromkeys(names, 0))
    row = summarize_tasks(by_task, by_layer, nulls).iloc[0]
    assert (row["best_layer"], row["best_memory"], row["one"], row["auc"]) == (1, 7, 1, 1)


MARKED = {
    "digits": ("in 1999 or", "1999"),
    "all capitals": ("the USA is", "USA"),
    "capital inside a sentence": ("The old Rome", "Rome"),
    "quotation": ('he "said so" then', '"said so"'),
    "ends in -ing": ("we are going on", "going"),
    "snake_case": ("set my_name = x", "my_name"),
    "LaTeX formula": ("let $a+b$ be", "$a+b$"),
    "call": ("then f(x) is", "f"),
}


class Words(NamedTuple):
    """A corpus of one text or more. Tokens are words with the blank before them."""

    texts: list[str]

    @property
    def token_end(self):
        ends = [[at for at, sign in enumerate(text) if sign == " "] + [len(text)] for text in self.texts]
        return np.concatenate(ends)

    @property
    def offsets(self):
        return np.cumsum([0, *(len(text.split()) for text in self.texts)])


def marked(corpus, rule):
    """The words of the first text that a rule labels."""
    return np.array(corpus.texts[0].split())[label_tokens(corpus, 0, rule)].tolist()


@pytest.mark.parametrize("rule", MARKED)
def test_a_rule_labels_tokens_that_overlap_its_match(rule):
    text, wanted = MARKED[rule]
    rules = {name: own for kind in ("text", "code") for name, own in find_rules(kind, "").items()}
    found = marked(Words([text]), rules[rule])
    assert found and all(word in wanted or wanted in word for word in found)


def test_parts_of_speech_are_those_of_a_pipeline(tmp_path):
    tagger = spacy.blank("en")
    ruler = tagger.add_pipe("attribute_ruler")
    for word, part in {"keys": "NOUN", "Paris": "PROPN", "are": "AUX"}.items():
        ruler.add([[{"TEXT": word}]], {"POS": part})
    tagger.to_disk(tmp_path / "own")
    rules = find_rules("speech", str(tmp_path / "own"))
    corpus = Words(["the keys of Paris are keys"])
    assert marked(corpus, rules["noun"]) == ["keys", "keys"] and marked(corpus, rules["verb"]) == []
    assert marked(corpus, rules["proper noun"]) == ["Paris"] and marked(corpus, rules["auxiliary"]) == ["are"]
    with pytest.raises(UserError, match="no pipeline 'nowhere'"):
        find_rules("speech", "nowhere")


def test_shares_of_trigger_examples_by_hand():
    """Of three memories: two of three examples end with digits, none does, and there is none. The empty prefix has no last token."""
    corpus = Words(["in 1999 or 2001", "no 7", "words alone"])
    sentence = np.array([[0, 1, 2], [2, 0, 0], [NONE, NONE, NONE]])
    position = np.array([[2, 2, 1], [2, 1, 0], [0, 0, 0]])
    triggers = SimpleNamespace(sentence=sentence, position=position)
    found = shares_of_examples(corpus, triggers, find_rules("text", "")["digits"])
    np.testing.assert_allclose(found, [2 / 3, 0, np.nan])


def test_a_task_of_rules_on_a_run(tiny):
    corpus = read_corpus(tiny / "results/tiny/corpus/train.h5")
    found = dict(tasks_of_rules(corpus, find_rules("code", ""), 60, 40, np.random.default_rng(4)))
    assert found.keys() == RULES["code"].keys()
    assert isinstance(found["LaTeX formula"], str) and "too few texts" in found["LaTeX formula"]
    own = found["bracket"]
    assert len(own.positive) <= 60 and own.positive.mean() == 0.5
    assert not {*own.document[own.train].tolist()} & {*own.document[~own.train].tolist()}
    for row, length in zip(own.rows, own.length.tolist(), strict=True):
        assert row[: len(corpus.bos)].tolist() == list(corpus.bos) and len(row) == length + len(corpus.bos)
    assert (own.counted == 1).all()
    beginnings = {tuple(corpus.prefix_ids(sentence, 40).tolist()) for sentence in range(len(corpus))}
    assert all(any(whole[: len(row)] == tuple(row.tolist()) for whole in beginnings) for row in own.rows)
