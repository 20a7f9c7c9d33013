"""What pages of memories ask of the model: colours of tokens, similar memories, the sample that these come from."""

import re
import threading
from dataclasses import replace

import numpy as np
import pytest

from ffkv.run.results.text import percent

from .conftest import text_of

pytestmark = pytest.mark.workflow


@pytest.fixture(scope="module")
def visitor(tiny_visitor):
    return tiny_visitor


@pytest.fixture(scope="module")
def run(visitor):
    return visitor.shelf.runs["tiny"].run


def test_colours_are_the_coefficients_of_the_stored_trigger_examples(visitor):
    held = visitor.shelf.runs["tiny"]
    memory = held.run.memory("L1.12")
    page = visitor.get("/r/tiny/m/1/12?colours=1")
    from ffkv_explorer.page_memory import colours_of

    sentences = memory.triggers["sentence"].head(10).tolist()
    for m, row in zip(colours_of(held, visitor.shelf, memory, "positive", sentences), memory.triggers.itertuples()):
        assert len(m) == held.run.corpus("train").lengths[row.sentence]
        assert m[row.position - 1] == pytest.approx(row.coefficient, rel=1e-4)  # float32, another batch
    assert len(re.findall(r'class="t p\d last"', page)) == min(10, len(memory.triggers))
    assert visitor.get("/r/tiny/m/1/12?colours=1&all=1").count(' last"') == len(memory.triggers)


def test_the_legend_of_colours_has_negative_ones_only_if_coefficients_can_be_negative(visitor):
    page = visitor.get("/r/tiny/m/1/12?colours=1")  # of a model with ReLU
    assert "most negative" not in page and ">largest</span>" in page
    layers = visitor.shelf.runs["tiny"].run.anatomy.layers
    own, layers[1] = layers[1], replace(layers[1], signed=True)
    try:
        assert "most negative" in visitor.get("/r/tiny/m/1/12?colours=1")
    finally:
        layers[1] = own


def test_coloured_pages_wait_for_the_model_and_those_that_are_kept_do_not(visitor, run):
    most = run.memories(sort="firing_rate")
    first, second = (f"/r/tiny/m/{row.layer}/{row.memory}?colours=1" for row in most[:2].itertuples())
    visitor.get(first)
    with visitor.shelf.model:
        visitor.get(first)
        done = threading.Event()
        thread = threading.Thread(target=lambda: (visitor.get(second), done.set()))
        thread.start()
        assert not done.wait(0.5)
    assert done.wait(60)
    thread.join()


def test_similar_memories_are_those_of_python(visitor, run):
    text = text_of(visitor.get("/r/tiny/m/1/12/similar"))
    for name in run.memory("L1.12").similar()["name"]:
        assert name in text


def test_the_sample_is_spread_over_the_file(visitor):
    from ffkv_explorer.shelf import SAMPLED

    held = visitor.shelf.runs["tiny"]
    sample = held.sample(1)
    with held.run.files.open_sampled_prefixes() as file:
        step = -(-len(file["sentence"]) // SAMPLED)
        assert np.array_equal(sample.sentence, file["sentence"][::step])
        assert np.array_equal(sample.m, file["m"][::step, 128:256])
    assert len(sample.m) <= SAMPLED


def test_the_page_of_a_memory_has_what_its_key_reads(visitor, run):
    table = run.table("keys/read_tokens").set_index(["layer", "memory"])
    for layer, memory in ((0, 3), (1, 12)):
        found, own = run.memory(layer, memory).reads, table.loc[(layer, memory)]
        assert found["id"].tolist() == own["tokens"].tolist() and {*found["factor"]} == {"key"}
        page = text_of(visitor.get(f"/r/tiny/m/{layer}/{memory}"))
        told = page[page.index("What the key reads") :]
        assert (
            f"AUC {' '.join(percent(own['auc']).split())}" in told
            if own["auc"] == own["auc"]
            else "AUC not known" in told
        )
        assert told.index("What the key reads") < told.index("Prediction of the value")
