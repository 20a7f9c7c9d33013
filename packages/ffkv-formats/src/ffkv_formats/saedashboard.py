"""SAEDashboard's batches for Neuronpedia: a JSON file per 128 memories.

Fields: `sae_dashboard/neuronpedia/neuronpedia_dashboard.py` of jbloomAus/SAEDashboard; conventions: its
`neuronpedia_converter.py`. Neuronpedia's own script turns such files into its export folder.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ffkv.run.export.job import Format, Job, Unit, definitions
from ffkv.run.export.records import Example, Record, number, numbers, shortest
from ffkv.run.results.memory import HISTOGRAM_EDGES
from ffkv_formats.shared import EMPTY, NUL, batch_units, by_interval, visible_tokens

POSITIVE = HISTOGRAM_EDGES[1:-1]  # lower edges of the bins of positive coefficients
# The last bin has no end; the others double.
BIN_POSITIONS = [*((POSITIVE[:-1] + POSITIVE[1:]) / 2).tolist(), 1.5 * float(POSITIVE[-1])]
ABSENT = (
    "neuron_alignment_indices", "neuron_alignment_values", "neuron_alignment_l1", "correlated_neurons_indices",
    "correlated_neurons_l1", "correlated_neurons_pearson", "correlated_features_indices", "correlated_features_l1",
    "correlated_features_pearson", "decoder_weights_dist",
)  # fmt: skip


def feature(record: Record, corpus: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """Makes a feature of a batch. `corpus`: n_prompts_total, n_tokens_in_prompt and dataset."""
    value = record.value
    assert value is not None and record.top.logit is not None and record.bottom.logit is not None
    middles = (value.edges[:-1] + value.edges[1:]) / 2
    top = {"bin_min": -1, "bin_max": number(record.statistics["maximum_coefficient"]), "bin_contains": -1}
    # The last token of the trigger prefix; of the empty prefix, the strongest token.
    places = [each.position - 1 if each.position else int(each.values.argmax()) for each in record.positive]
    activations = [_activation(example, token, top) for example, token in zip(record.positive, places)]
    for each in by_interval(record.sample, generator):
        inside = {"bin_min": each.low, "bin_max": each.high, "bin_contains": each.share}
        activations += [_activation(example, token, inside) for example, token in each.examples]
    return {
        "feature_index": record.memory,
        **{name: [] for name in ABSENT},
        "neg_str": visible_tokens(record.bottom.tokens),
        "neg_values": numbers(shortest(record.bottom.logit)),
        "pos_str": visible_tokens(record.top.tokens),
        "pos_values": numbers(shortest(record.top.logit)),
        "frac_nonzero": record.statistics["firing_rate"],
        "freq_hist_data_bar_values": BIN_POSITIONS,
        "freq_hist_data_bar_heights": record.histogram[1:].tolist(),
        "logits_hist_data_bar_heights": value.heights.tolist(),
        "logits_hist_data_bar_values": numbers(shortest(middles)),
        **corpus,
        "activations": activations,
        "vector": numbers(shortest(value.vector)),
    }


def _activation(example: Example, token: int, group: dict[str, Any]) -> dict[str, Any]:
    return {
        **group,
        "tokens": visible_tokens(example.text.tokens),
        "values": numbers(example.values),
        "qualifying_token_index": token,
    }


def units(job: Job) -> list[Unit]:
    """Makes `<layer>/batch-<n>.json`."""
    facts = job.run.files.corpora["train"]
    corpus = {
        "n_prompts_total": int(facts["sentences"]),
        "n_tokens_in_prompt": round(facts["tokens"] / max(1, facts["sentences"])),
        "dataset": job.run.settings.corpus.dataset,
    }

    def batch(layer: int, records: Iterable[Record]) -> dict[str, Any]:
        about = {"model_id": job.model_id, "layer": layer, "sae_set": job.set_name, "sae_id_suffix": None}
        return about | {"features": [feature(record, corpus, job.random(record)) for record in records]}

    return batch_units(job, batch)


FORMAT = Format(
    examples=20,
    sentences=100,
    units=units,
    logits=True,
    definitions=definitions(__package__, "saedashboard", EMPTY=EMPTY, NUL=NUL),
)
