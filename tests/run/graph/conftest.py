"""Chains that are planted, and made-up runs: what graphs are made of, and what is written of them."""

import itertools

import pytest
import torch
from support import WORDS, detector_checkpoint, word_tokenizer
from transformers import AutoModelForCausalLM

import ffkv
from tests.branches.intervention.conftest import write_inputs

PAIRS = [
    {
        "clean_prefix": f"{one} {other} a",
        "patch_prefix": f"{one} {other} e",
        "clean_answer": " b",
        "patch_answer": " h",
        "group": f"{one} {other}",  # all differ in the same words
    }
    for one, other in itertools.product("dfgi", "dfi")
]
FEW = {"candidates": 2, "controls": 1, "directions": 0, "sets": [1], "random_sets": 2, "effect_prompts": 2}
FEW["flips"] = 100


def chain_checkpoint(folder):
    """A GPT-2 without attention, of three layers: L0.0 reads a and writes q, L1.0 reads q and writes p, L2.0 reads p and writes b.

    L0.1 reads a and writes o, which nothing reads. L1.1 reads c, which is not there.
    """
    detector_checkpoint(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    config = model.config
    config.n_layer = 3
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        plain = "ln_" in name and name.endswith("weight")
        parameter.data = torch.ones_like(parameter) if plain else torch.zeros_like(parameter)
    model.transformer.wte.weight.data = torch.eye(17)
    links = {0: [("a", "p", 0.4), ("a", "o", 0.1)], 1: [("p", "n", 3.0), ("c", "b", 3.0)], 2: [("n", "b", 3.0)]}
    for layer, memories in links.items():
        mlp = model.transformer.h[layer].mlp
        mlp.c_fc.bias.data[:] = -1.0  # what other words write does not reach it
        for memory, (reads, writes, weight) in enumerate(memories):
            mlp.c_fc.weight.data[WORDS.index(reads), memory] = 1
            mlp.c_proj.weight.data[memory, WORDS.index(writes)] = weight
    model.save_pretrained(folder)
    word_tokenizer(WORDS).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def chain(tmp_path_factory):
    """An open run of the chain."""
    from small_runs import write_run

    from tests.run.export.conftest import complete

    folder = tmp_path_factory.mktemp("chain")
    return ffkv.open(complete(write_run(folder / "run", chain_checkpoint(folder / "checkpoint"), "auto", "float32")))


@pytest.fixture
def without_patterns(monkeypatch):
    """Runs of tests have no branch of keys."""
    monkeypatch.setattr("ffkv.run.results.memory.Memory.pattern", "ends with “a”")


@pytest.fixture(scope="session")
def chain_inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    sentences = [f"{one} {other} {third}" for one in "abcdefgh" for other in "abcdefgh" for third in "abce"]
    return write_inputs(folder / "run", chain_checkpoint(folder / "checkpoint"), sentences)


@pytest.fixture
def made_up(tmp_path):
    """A made-up run whose behaviour has a graph."""
    from tests.run.report.conftest import write_results

    return write_results(tmp_path / "demo", layers=2)
