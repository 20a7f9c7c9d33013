"""Limits of the formats, and texts that are hostile to them. Records are made by hand."""

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from ffkv.base.errors import UserError
from ffkv.run.export import parquet
from ffkv.run.export.job import write_json
from ffkv.run.export.records import (
    BINS,
    Example,
    Promoted,
    Record,
    Text,
    ValueLogits,
    histograms,
    number,
    numbers,
    shortest,
)
from ffkv.run.export.selection import Selection
from ffkv_formats import circuit_tracer, neuron_record, neuronpedia, saedashboard, transluce
from ffkv_formats.circuit_tracer_graphs import feature_number
from ffkv_formats.delphi import WINDOW, split, windows
from ffkv_formats.notebook import harmless
from ffkv_formats.shared import EMPTY, NUL, batch_units, by_interval

HOSTILE = ["", "\0", "</script>", " \u202e", " =1+1", "é"]
VOCABULARY = [*HOSTILE, *[f" w{number}" for number in range(60)]]
STATISTICS = {"firing_rate": 0.25, "mean_coefficient": 0.5, "maximum_coefficient": 3.0, "minimum_coefficient": -2.0}


def random():
    return np.random.default_rng(0)


def example(tokens, values, position=1, sentence=0) -> Example:
    return Example(
        Text(sentence, np.arange(len(tokens)), list(tokens)), shortest(np.array(values, np.float32)), position
    )


def record(positive=(), negative=(), sample=(), vocabulary=VOCABULARY) -> Record:
    ends = np.arange(50)
    logit = np.linspace(3, 1, 50).astype(np.float32)
    value = ValueLogits(np.ones(4, np.float32), logit, -logit, np.arange(BINS), np.linspace(-1, 1, BINS + 1))
    return Record(
        layer=2, memory=7, place=0, positive=[*positive], negative=[*negative], sample=[*sample], statistics=STATISTICS,
        histogram=np.arange(13), top=Promoted(ends, vocabulary, logit), bottom=Promoted(ends[::-1], vocabulary, -logit),
        value=value,
    )  # fmt: skip


SAMPLE = [example(["a", "b"], [n / 4, -n / 8], 0, n) for n in range(12)]
HOSTILE_RECORD = record([example(HOSTILE, [1, -1, 2, 0, 3, -2])], [example(HOSTILE, [1, -1, 2, 0, 3, -2], 6)], SAMPLE)
DEAD = record(sample=[example(["a"], [0.0], 0, n) for n in range(12)])


def check_request(features: list[dict]) -> None:
    """The documented limits of `feature/upload-batch`."""
    assert 1 <= len(features) <= 128
    assert len({each["index"] for each in features}) == len(features)
    for each in features:
        assert 0 <= each["index"] <= 10_000_000 and 0 <= each["density"] <= 1
        for end in ("topLogits", "bottomLogits"):
            assert len(each[end]) <= 20
            assert all(logit["token"] and isinstance(logit["value"], float) for logit in each[end])
        assert each["activations"]
        for activation in each["activations"]:
            tokens, values = activation["tokens"], activation["values"]
            assert 1 <= len(tokens) <= 1024 and len(tokens) == len(values)
            assert all(isinstance(token, str) and token and "\0" not in token for token in tokens)
            assert 0 <= activation.get("quantileFraction", 0) <= 1


def test_neuronpedia_keeps_its_limits():
    long = record([example(["x"] * 1500, np.arange(1500), 1400)], sample=SAMPLE)
    check_request([neuronpedia.feature(HOSTILE_RECORD, random())])
    feature = neuronpedia.feature(long, random())
    check_request([feature])
    assert feature["activations"][0]["values"] == [float(n) for n in range(1024)]


def test_neuronpedia_gets_no_memory_without_activations(tmp_path):
    selection = Selection(np.array([2, 2]), np.array([6, 7]), {}, {}, np.arange(3))
    job = SimpleNamespace(selection=selection, model_id="m", set_name="s", random=lambda record: random())
    (unit,) = neuronpedia.units(job)
    unit.write(tmp_path / "batch.json", [DEAD, HOSTILE_RECORD])
    assert unit.path == "2-s/batch-0.json"
    check_request(json.loads((tmp_path / "batch.json").read_text())["features"])


@pytest.mark.parametrize("size", [1, 128, 129, 300])
def test_batches_have_128_memories_of_one_layer(size):
    layer = np.repeat([0, 3], size)
    selection = Selection(layer, np.tile(np.arange(size), 2), {}, {}, np.arange(3))
    batches = [unit.places for unit in batch_units(SimpleNamespace(selection=selection), lambda layer, records: [])]
    assert [place for batch in batches for place in batch] == list(range(2 * size))
    assert all(len({*layer[batch.start : batch.stop]}) == 1 and len(batch) <= 128 for batch in batches)


@pytest.mark.parametrize(
    "content",
    [
        lambda own: neuron_record.neuron_record(own, "positive", random()),
        lambda own: neuron_record.neuron_record(own, "negative", random()),
        lambda own: saedashboard.feature(own, {"n_prompts_total": 1}, random()),
        lambda own: transluce.exemplars(own, "corpus"),
        lambda own: circuit_tracer.feature_file(own, "set", random()),
        lambda own: neuronpedia.feature(own, random()),
    ],
)
@pytest.mark.parametrize("own", [HOSTILE_RECORD, DEAD])
def test_any_text_and_dead_memories_are_written_and_read_back(content, own, tmp_path):
    written = content(own)
    write_json(tmp_path / "file.json", written)
    assert json.loads((tmp_path / "file.json").read_text(encoding="utf-8")) == written


def test_tokens_are_kept_where_the_format_can_hold_them():
    own = neuron_record.neuron_record(HOSTILE_RECORD, "positive", random())
    assert own["most_positive_activation_records"][0]["tokens"] == HOSTILE
    visible = [EMPTY, NUL, *HOSTILE[2:]]
    assert saedashboard.feature(HOSTILE_RECORD, {}, random())["activations"][0]["tokens"] == visible
    assert neuronpedia.feature(HOSTILE_RECORD, random())["activations"][0]["tokens"] == visible


def test_a_memory_without_negative_examples_has_no_negative_record(tmp_path):
    """The tool takes the largest of the examples. A unit of a dictionary has none below 0, where another layer's memories have."""
    groups = [SimpleNamespace(layer=2, places=range(2))]
    selection = SimpleNamespace(sentence={"negative": np.zeros((2, 1))}, groups=lambda: groups)
    below, above = (
        replace(HOSTILE_RECORD, memory=n, negative=own) for n, own in ((3, HOSTILE_RECORD.negative), (4, []))
    )
    for unit in neuron_record.units(SimpleNamespace(selection=selection, random=lambda record: random())):
        (tmp_path / unit.path).parent.mkdir()
        unit.write(tmp_path / unit.path, [below, above])
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")} == {
        "positive/2/3.json",
        "positive/2/4.json",
        "negative/2/3.json",
    }


def test_the_negative_record_is_flipped():
    own = neuron_record.neuron_record(HOSTILE_RECORD, "negative", random())
    assert own["most_positive_activation_records"][0]["activations"] == [-1, 1, -2, 0, -3, 2]
    assert "-0.0" not in json.dumps(own)
    assert own["mean"] == -0.5


def test_a_number_that_is_not_finite_is_null():
    own = record([example(["a", "b"], [np.nan, np.inf])], sample=SAMPLE)
    records = neuron_record.neuron_record(own, "positive", random())["most_positive_activation_records"]
    assert records[0]["activations"] == [None, None]
    assert numbers([1.5, np.nan]) == [1.5, None] and number(-np.inf) is None
    with pytest.raises(ValueError):
        json.dumps(float("nan"), allow_nan=False)


def test_numbers_are_short_and_exact():
    values = np.concatenate([random().standard_normal(1000) * 10.0**p for p in range(-30, 30, 5)]).astype(np.float32)
    written = json.loads(json.dumps(numbers(shortest(values))))
    assert np.array_equal(np.array(written, np.float32), values)
    assert json.dumps(numbers(shortest(np.array([0.1, 1e-20], np.float32)))) == "[0.1, 1e-20]"
    assert np.float32(number(values[3])) == values[3]


def test_quarters_and_intervals():
    groups = neuron_record.by_quantile(SAMPLE, 2, random())
    tops = [[own.values.max() for own in group] for group in groups]
    assert [len(group) for group in groups] == [2] * 4
    assert all(max(a) < min(b) for a, b in itertools.pairwise(tops))
    intervals = by_interval(SAMPLE, random(), 3)
    assert next((each.low, each.high) for each in intervals) == (pytest.approx(2.2), 2.75)
    together = np.concatenate([own.values for own in SAMPLE])
    assert sum(each.share for each in intervals) == pytest.approx(np.mean(together > 0))
    for each in intervals:
        assert 1 <= len(each.examples) <= 3
        assert all(each.low < own.values[token] <= each.high for own, token in each.examples)
    assert by_interval(DEAD.sample, random(), 3) == []
    assert neuron_record.by_quantile([], 3, random()) == [[], [], [], []]


def test_transluce_gets_no_empty_list():
    own = transluce.exemplars(DEAD, "corpus")["activation_records"]
    assert {*own} == {"train", "valid", "test", "random_train", "random_valid", "random_test"}
    assert all(own[split][kind] for split in own for kind in ("max", "min"))


@pytest.mark.parametrize("place", [(0, 0), (3, 17), (47, 9556)])
def test_the_name_of_a_feature_file_leads_back(place):
    number = feature_number(*place)
    w = int((np.sqrt(8 * number + 1) - 1) // 2)
    memory = number - w * (w + 1) // 2
    assert (w - memory, memory) == place


def test_windows_begin_with_a_sentence():
    sentences = [np.arange(1, 40), np.arange(100, 132), np.array([7])]
    tokens, locations = windows(sentences, 0)
    assert tokens.shape == (4, WINDOW)
    assert tokens[0].tolist() == list(range(1, 33)) and tokens[1].tolist() == [*range(33, 40), *[0] * 25]
    assert tokens[locations[:, 0], locations[:, 1]].tolist() == np.concatenate(sentences).tolist()


def test_delphi_gets_what_is_above_its_threshold():
    tokens, locations = windows([np.array([5, 6, 7])], 0)
    own = split(np.array([[1e-6, 2, -3], [0, 0, 4]], np.float32), np.array([0, 3]), locations, tokens)
    assert own["locations"].tolist() == [[0, 1, 0], [0, 2, 3]] and own["activations"].tolist() == [2, 4]
    assert own["locations"].dtype == np.uint16
    many = split(np.ones((1, 3), np.float32), np.array([70_000]), locations, tokens)
    assert many["locations"].dtype == np.uint32 and many["locations"][0, 2] == 70_000
    with pytest.raises(UserError, match="float16"):
        split(np.full((1, 3), 1e5, np.float32), np.array([0]), locations, tokens)


def test_histograms_of_logits():
    import torch

    logits = torch.from_numpy(random().standard_normal((3, 1000)).astype(np.float32))
    logits[2] = 1.5  # all equal
    heights, edges = histograms(logits)
    for row in (0, 1):
        wanted, bounds = np.histogram(logits[row].numpy(), BINS)
        assert np.abs(heights[row] - wanted).sum() <= 4  # a logit at an edge may round to either side
        np.testing.assert_allclose(edges[row], bounds, rtol=1e-5, atol=1e-6)
    assert heights[2].tolist() == [1000, *[0] * (BINS - 1)]


@pytest.mark.parametrize(
    ("rows", "category"), [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (458_752, "100K<n<1M"), (10**9, "1B<n<10B")]
)
def test_size_categories(rows, category):
    assert parquet.size_category(rows) == category


def test_tables_below_each_other_have_one_schema(tmp_path):
    frames = [
        pd.DataFrame({"a": [1], "b": ["x"]}),
        pd.DataFrame({"a": [], "b": []}),
        pd.DataFrame({"a": [2], "b": ["y"]}),
    ]
    parquet._write(tmp_path / "table.parquet", frames)
    assert pq.read_table(tmp_path / "table.parquet").to_pydict() == {"a": [1, 2], "b": ["x", "y"]}


def test_a_table_of_memories_without_trigger_examples_does_not_decide_the_types(tmp_path):
    nothing = pd.DataFrame({"a": np.zeros(0, np.int32), "b": []})
    parquet._write(tmp_path / "table.parquet", [nothing, pd.DataFrame({"a": np.ones(1, np.int32), "b": ["x"]})])
    assert pq.read_table(tmp_path / "table.parquet").to_pydict() == {"a": [1], "b": ["x"]}
    parquet._write(tmp_path / "nothing.parquet", [nothing])
    assert pq.read_table(tmp_path / "nothing.parquet").to_pydict() == {"a": [], "b": []}


def test_the_head_of_a_card_is_yaml(exported):
    head = (exported("parquet") / "README.md").read_text().split("---\n")[1]
    card = yaml.safe_load(head)
    assert card["configs"][0] == {"config_name": "memories", "data_files": "memories.parquet", "default": True}
    assert "license" not in card


def test_circuitsvis_gets_no_token_that_ends_its_script():
    for token in ("</script>", "<!--", "x</SCRIPT >"):
        assert "</" not in harmless(token) and "<!" not in harmless(token) and len(harmless(token)) == len(token)
    assert harmless(" < / b") == " < / b"
