"""Every number of every format, against the model that is run by itself with a hook of its own."""

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

import ffkv
import ffkv_formats
from ffkv.base.errors import UserError
from ffkv_formats.circuit_tracer_graphs import feature_number
from ffkv_formats.delphi import WINDOW
from tests.run.export.conftest import CHOSEN, MEMORIES

# Rounding of float32: the export runs batches of other shapes. In the tail of GELU a coefficient is much smaller than what it is
# computed from.
RELATIVE, ABSOLUTE = 1e-4, 1e-5


def assert_close(found, wanted) -> None:
    """As `np.testing.assert_allclose`, which takes longer than an export."""
    found, wanted = np.asarray(found, float), np.asarray(wanted, float)
    assert found.shape == wanted.shape
    assert (np.abs(found - wanted) <= ABSOLUTE + RELATIVE * np.abs(wanted)).all(), (found, wanted)


@pytest.fixture(scope="module")
def expected(run):
    """Coefficients of each train sentence [layer][token, memory]: GPT-2's `c_proj` gets them, one sentence at a time."""
    model = AutoModelForCausalLM.from_pretrained(run.anatomy.checkpoint).eval()
    corpus, seen = run.corpus("train"), []
    for block in model.transformer.h:
        block.mlp.c_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0][0].detach().numpy().copy()))
    found = []
    for sentence in range(len(corpus)):
        seen.clear()
        model(input_ids=torch.tensor([[*corpus.bos, *corpus.ids(sentence).tolist()]]))
        found.append([m[len(corpus.bos) :] for m in seen])
    return found


@pytest.fixture(scope="module")
def sentence_of(run):
    """The number of a train sentence by its tokens' texts."""
    corpus, found = run.corpus("train"), {}
    for number in range(len(corpus)):
        ends = [0, *corpus.token_end[corpus.offsets[number] : corpus.offsets[number + 1]].tolist()]
        found[tuple(corpus.texts[number][a:b] for a, b in itertools.pairwise(ends))] = number
    assert len(found) == len(corpus)
    return lambda tokens: found[tuple(tokens)]


@pytest.fixture(scope="module")
def check(expected, sentence_of):
    """Compares the values of a memory on a text; returns the sentence."""

    def compare(layer, memory, tokens, values, sign=1) -> int:
        sentence = sentence_of(tokens)
        assert_close(values, sign * expected[sentence][layer][:, memory])
        return sentence

    return compare


def str_order(place: tuple[int, int]) -> tuple[str, str]:
    """The order of paths."""
    return str(place[0]), f"{place[1]}.json"


def memories_of(layer: int) -> list[int]:
    return [memory for own, memory in CHOSEN if own == layer]


def read(path: Path):
    return json.loads(path.read_text())


def trigger_sentences(run, layer, memory, side) -> list[int]:
    examples = run.memory(layer, memory)
    table = examples.triggers if side == "positive" else examples.negative_triggers
    return table["sentence"].tolist()[:3]


@pytest.mark.parametrize("side", ["positive", "negative"])
def test_neuron_record(run, exported, check, side):
    files = sorted((exported("neuron-record") / side).glob("*/*.json"))
    assert [(int(path.parent.name), int(path.stem)) for path in files] == sorted(CHOSEN, key=str_order)
    statistics = run.memories().set_index("name")
    sign = 1 if side == "positive" else -1
    for path in files:
        record = read(path)
        layer, memory = record["neuron_id"]["layer_index"], record["neuron_id"]["neuron_index"]
        assert (path.parent.name, path.stem) == (str(layer), str(memory))
        records = record["most_positive_activation_records"]
        shown = [check(layer, memory, each["tokens"], each["activations"], sign) for each in records]
        assert sorted(shown) == sorted(trigger_sentences(run, layer, memory, side))
        maxima = [max(each["activations"]) for each in records]
        assert maxima == sorted(maxima, reverse=True)
        sample = [check(layer, memory, each["tokens"], each["activations"], sign) for each in record["random_sample"]]
        assert len({*sample}) == len(sample) == 8  # all random sentences that there are
        groups = record["random_sample_by_quantile"]
        assert [len(group) for group in groups] == [2] * 4 == [2] * (len(record["quantile_boundaries"]) - 1)
        tops = [[max(each["activations"]) for each in group] for group in groups]
        assert all(max(a) <= min(b) for a, b in itertools.pairwise(tops))
        for each in itertools.chain(*groups):
            check(layer, memory, each["tokens"], each["activations"], sign)
        mean = statistics["mean_coefficient"][f"L{layer}.{memory}"]
        assert record["mean"] == pytest.approx(sign * mean, rel=1e-6)
        assert record["variance"] is record["skewness"] is record["kurtosis"] is None


@pytest.fixture(scope="module")
def logits(run):
    """Logits of the value of a memory: the model's last norm and its output embedding, by hand."""
    model = AutoModelForCausalLM.from_pretrained(run.anatomy.checkpoint).eval()

    def of(layer, memory) -> np.ndarray:
        value = model.transformer.h[layer].mlp.c_proj.weight[memory]
        return model.lm_head(model.transformer.ln_f(value)).detach().numpy()

    return of


def test_neuronpedia(run, exported, check, logits):
    layers = len(run.anatomy.layers)
    statistics, seen = run.memories().set_index("name"), 0
    for layer in range(layers):
        (path,) = (exported("neuronpedia") / f"{layer}-ffkv").iterdir()
        request = read(path)
        assert (request["modelId"], request["source"]) == ("gpt2", f"{layer}-ffkv")
        for feature in request["features"]:
            memory, seen = feature["index"], seen + 1
            own = logits(layer, memory)
            for end, order in (("topLogits", np.sort(own)[::-1]), ("bottomLogits", np.sort(own))):
                assert_close([each["value"] for each in feature[end]], order[:5])
                ids = [run.vocabulary.index(each["token"]) for each in feature[end]]
                assert_close(own[ids], order[:5])
            assert feature["density"] == statistics["firing_rate"][f"L{layer}.{memory}"]
            tops = [each for each in feature["activations"] if "quantileMin" not in each]
            shown = [check(layer, memory, each["tokens"], each["values"]) for each in tops]
            assert sorted(shown) == sorted(trigger_sentences(run, layer, memory, "positive"))
            for each in feature["activations"]:
                check(layer, memory, each["tokens"], each["values"])
                if "quantileMin" in each:
                    low, high = each["quantileMin"], each["quantileMax"] * (1 + 1e-6)
                    assert any(low < value <= high for value in each["values"])
    left_out = read(exported("neuronpedia") / "ffkv-export.json")["left_out"]
    assert seen == len(CHOSEN) and left_out == []


def test_saedashboard(run, exported, expected, check, logits):
    statistics = run.memories().set_index("name")
    sample = random_sentences(run)
    for layer in range(len(run.anatomy.layers)):
        batch = read(exported("saedashboard") / f"{layer}/batch-0.json")
        assert (batch["model_id"], batch["layer"], batch["sae_set"]) == ("gpt2", layer, "ffkv")
        assert [feature["feature_index"] for feature in batch["features"]] == memories_of(layer)
        for feature in batch["features"]:
            memory = feature["feature_index"]
            own, numbers = logits(layer, memory), statistics.loc[f"L{layer}.{memory}"]
            assert_close(feature["pos_values"], np.sort(own)[::-1][:5])
            assert_close(feature["neg_values"], np.sort(own)[:5])
            heights, middles = np.array(feature["logits_hist_data_bar_heights"]), feature["logits_hist_data_bar_values"]
            assert heights.sum() == len(own)
            assert abs(np.average(middles, weights=heights) - own.mean()) <= np.ptp(own) / len(heights)
            assert feature["frac_nonzero"] == numbers["firing_rate"]
            histogram = run.memory(layer, memory).histogram
            assert feature["freq_hist_data_bar_heights"] == histogram["prefixes"].tolist()[1:]
            assert len(feature["freq_hist_data_bar_values"]) == len(histogram) - 1
            value = run_value(run, layer, memory)
            np.testing.assert_array_equal(np.array(feature["vector"], np.float32), value)
            together = np.concatenate([expected[sentence][layer][:, memory] for sentence in sample])
            for each in feature["activations"]:
                check(layer, memory, each["tokens"], each["values"])
                at = each["values"][each["qualifying_token_index"]]
                if each["bin_contains"] == -1:
                    assert (each["bin_min"], each["bin_max"]) == (-1, pytest.approx(numbers["maximum_coefficient"]))
                else:
                    low, high = each["bin_min"], each["bin_max"]
                    assert low < at <= high * (1 + 1e-6)
                    inside = np.mean((together > low + 1e-5) & (together <= high + 1e-5))
                    assert each["bin_contains"] == pytest.approx(inside, abs=0.02)


def random_sentences(run) -> list[int]:
    from ffkv.run.export.selection import random_sentences

    return random_sentences(run, 8).tolist()


def run_value(run, layer, memory) -> np.ndarray:
    with run.files.open_values() as file:
        return file["value"][run.anatomy.layer_offset[layer] + memory]


def test_transluce(run, exported, check):
    for layer in range(len(run.anatomy.layers)):
        files = [*(exported("transluce") / str(layer)).glob("*.json")]
        assert sorted(int(path.stem) for path in files) == memories_of(layer)
        for path in files:
            neuron, memory = read(path), int(path.stem)
            records = neuron["activation_records"]
            assert {*records} == {
                f"{prefix}{split}" for prefix in ("", "random_") for split in ("train", "valid", "test")
            }
            for kind, side in (("max", "positive"), ("min", "negative")):
                shown = []
                for split in ("train", "valid", "test"):
                    for each in records[split][kind]:
                        shown.append(check(layer, memory, each["tokens"], each["activations"]))
                        assert [run.vocabulary[token].strip() for token in each["token_ids"]] == [
                            token.strip() for token in each["tokens"]
                        ]
                wanted = trigger_sentences(run, layer, memory, side)
                assert {*wanted} <= {*shown} and len(shown) == len({*shown}) == 3
            for split in records:
                assert all(records[split].values()), "the class takes the maximum of each list"
                assert {kind: len(own) for kind, own in records[split].items()} == {
                    kind: len(own) for kind, own in neuron["dataset_names"][split].items()
                }


def test_circuit_tracer(run, exported, check):
    folder = exported("circuit-tracer") / "features/ffkv"
    statistics = run.memories().set_index("name")
    assert len([*folder.iterdir()]) == len(CHOSEN)
    for layer in range(len(run.anatomy.layers)):
        for memory in memories_of(layer):
            feature = read(folder / f"{feature_number(layer, memory)}.json")
            assert feature["index"] == memory
            groups = {group["quantile_name"]: group["examples"] for group in feature["examples_quantiles"]}
            for name, side in (("Top activations", "positive"), ("Bottom activations", "negative")):
                shown = [check(layer, memory, each["tokens"], each["tokens_acts_list"]) for each in groups[name]]
                wanted = trigger_sentences(run, layer, memory, side)
                assert sorted(shown) == sorted(wanted)
            for examples in groups.values():
                for each in examples:
                    check(layer, memory, each["tokens"], each["tokens_acts_list"])
                    assert 0 <= each["train_token_ind"] < len(each["tokens"])
            numbers = statistics.loc[f"L{layer}.{memory}"]
            limits = numbers["minimum_coefficient"], numbers["maximum_coefficient"]
            assert (feature["act_min"], feature["act_max"]) == pytest.approx(limits)
            assert feature["activation_frequency"] == numbers["firing_rate"]
            assert feature["top_logits"] == run.memory(layer, memory).promotes(5)["token"].tolist()


@pytest.mark.parametrize("sign", [1, -1])
def test_delphi(run, exported, expected, sign):
    import torch

    sentences = delphi_sentences(run)
    corpus = run.corpus("train")
    counts = torch.load(exported("delphi") / "log/hookpoint_firing_counts.pt")
    for layer in range(len(run.anatomy.layers)):
        hookpoint = f"layers.{layer}.mlp" + ("" if sign > 0 else ".negative")
        (path,) = (exported("delphi") / "latents" / hookpoint).glob("*.safetensors")
        stored, wanted, row = load_file(path), {}, 0
        for sentence in sentences:
            own, ids = sign * expected[sentence][layer], corpus.ids(sentence)
            for token, memory in itertools.product(range(len(own)), memories_of(layer)):
                if own[token, memory] > 1e-5:
                    wanted[row + token // WINDOW, token % WINDOW, memory] = own[token, memory]
            for token, number in enumerate(ids.tolist()):
                assert stored["tokens"][row + token // WINDOW, token % WINDOW] == number
            row += -(-len(ids) // WINDOW)
        assert stored["tokens"].shape == (row, WINDOW) and stored["tokens"].dtype == np.int64
        assert stored["locations"].dtype == np.uint16 and stored["activations"].dtype == np.float16
        found = dict(
            zip(map(tuple, stored["locations"].tolist()), stored["activations"].astype(float).tolist(), strict=True)
        )
        # A coefficient at the threshold may be on either side of it.
        near = {place for place, value in (wanted | found).items() if abs(value - 1e-5) < ABSOLUTE}
        assert wanted.keys() - near == found.keys() - near
        for place, value in found.items():
            assert value == pytest.approx(wanted.get(place, 1e-5), rel=1e-3, abs=ABSOLUTE)  # float16
        at = [(memory, row, token) for row, token, memory in stored["locations"].tolist()]
        assert at == sorted(at), "delphi wants the entries of a latent side by side, in the order of the text"
        positive = sum((sign * expected[sentence][layer] > 0).sum(0) for sentence in sentences)
        own = memories_of(layer)
        assert np.abs(counts[hookpoint].numpy() - positive)[own].max() <= 1  # a coefficient of 0 but for rounding
        assert not np.delete(counts[hookpoint].numpy(), own).any()


def delphi_sentences(run) -> list[int]:
    from ffkv.run.export.selection import select
    from ffkv.run.results.collections import choose_memories

    return select(run, *choose_memories(run.files, MEMORIES), 3, 8).sentences.tolist()


def test_parquet(run, exported, expected):
    folder = exported("parquet")
    memories = pd.read_parquet(folder / "memories.parquet")
    everything = run.memories()
    chosen = [place in CHOSEN for place in zip(everything["layer"], everything["memory"], strict=True)]
    pd.testing.assert_frame_equal(memories, everything[chosen].reset_index(drop=True), check_dtype=False)
    triggers, tokens = pd.read_parquet(folder / "triggers.parquet"), pd.read_parquet(folder / "tokens.parquet")
    for layer, memory in ((0, 3), (1, 63), (2, 0)):
        own = triggers[(triggers["layer"] == layer) & (triggers["memory"] == memory)].reset_index(drop=True)
        wanted = run.memory(layer, memory)
        for side, table in (("positive", wanted.triggers), ("negative", wanted.negative_triggers)):
            part = own[own["side"] == side].drop(columns=["layer", "memory", "name", "side"]).reset_index(drop=True)
            pd.testing.assert_frame_equal(part, table, check_dtype=False)
        own = tokens[(tokens["layer"] == layer) & (tokens["memory"] == memory)]
        for end, table in (("top", wanted.promotes(5)), ("bottom", wanted.demotes(5))):
            part = own[own["end"] == end].set_index("rank")
            assert part["token"].tolist() == table["token"].tolist() and part["id"].tolist() == table["id"].tolist()
            np.testing.assert_allclose(part["probability"], table["probability"], rtol=1e-6)
    assert pd.read_parquet(folder / "patterns.parquet")["label"].tolist() == ["ends with “w1”"]
    coefficients = pd.read_parquet(folder / "coefficients.parquet")
    assert coefficients.groupby("source").size()["random"] == len(CHOSEN) * 8
    for row in coefficients.itertuples():
        assert_close(row.coefficients, expected[row.sentence][row.layer][:, row.memory])
        assert "".join(row.tokens) == run.corpus("train").texts[row.sentence]


def test_parquet_is_a_data_set(exported, own_cache):
    import datasets

    tables = {"memories", "triggers", "tokens", "patterns", "coefficients"}
    assert {*datasets.get_dataset_config_names(str(exported("parquet")))} == tables
    for name in tables:
        rows = datasets.load_dataset(str(exported("parquet")), name, split="train")
        assert len(rows) == len(pd.read_parquet(exported("parquet") / f"{name}.parquet"))
    assert "licen" not in (exported("parquet") / "README.md").read_text().partition("\n---\n")[0]


def test_no_format_has_fields_of_ours(exported):
    """Readers build their classes from the fields, so the fields are these and no others."""
    record = read(next((exported("neuron-record") / "positive/0").iterdir()))
    assert {*record} == {
        "dataclass_name", "neuron_id", "random_sample", "random_sample_by_quantile", "quantile_boundaries", "mean",
        "variance", "skewness", "kurtosis", "most_positive_activation_records",
    }  # fmt: skip
    assert {*record["random_sample"][0]} == {"dataclass_name", "tokens", "activations"}
    config = read(exported("delphi") / "latents/layers.0.mlp/config.json")
    assert {*config} == {
        "dataset_repo", "dataset_split", "dataset_name", "dataset_column", "batch_size", "cache_ctx_len", "n_tokens",
        "n_splits", "model_name",
    }  # fmt: skip


def test_the_arguments_of_circuitsvis(run):
    memory = run.memory(1, 5)
    found = ffkv_formats.circuitsvis(memory, examples=2, device="cpu")
    sentences = [*memory.triggers["sentence"][:2], *memory.negative_triggers["sentence"][:2]]
    sentences = [*dict.fromkeys(sentences)]
    assert ["".join(tokens) for tokens in found["tokens"]] == [run.corpus("train").texts[s] for s in sentences]
    m = ffkv.coefficients(run, sentences, "L1.5", "cpu")["L1.5"]
    for number, own in enumerate(found["activations"]):
        assert_close(own[:, 0, 0], m.loc[number])
        assert own.ndim == 3
    with pytest.raises(UserError, match="examples is 0"):
        ffkv_formats.circuitsvis(memory, 0)


def test_circuitsvis_that_is_not_installed_is_named(run, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "circuitsvis.activations", None)
    with pytest.raises(UserError, match="pip install circuitsvis"):
        ffkv_formats.circuitsvis(run.memory(1, 5), 1, "cpu").show()
