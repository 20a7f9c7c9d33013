"""Merging the triggers of shards against those of the whole corpus, of both signs, with ties."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ffkv.activations.merge import combine_triggers
from ffkv.activations.trigger_file import HISTOGRAM_EDGES, Negative, TriggerExamples, Triggers
from ffkv.files.datasets import datasets_of

entries = st.tuples(
    st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0]),
    st.integers(0, 9),
    st.integers(1, 3),
    st.sampled_from([-1, 1]),
)


def examples(found, sign: int, t: int) -> dict[str, np.ndarray]:
    """One key's trigger examples of a sign among (coefficient, sentence, position, gate)."""
    own = sorted((entry for entry in found if sign * entry[0] > 0), key=lambda entry: (-sign * entry[0], *entry[1:3]))
    kept = own[:t] + [(0.0, -1, 0, 0)] * (t - len(own[:t]))
    coefficient, sentence, position, gate = (np.array([column]) for column in zip(*kept, strict=True))
    return {
        "coefficient": coefficient.astype(np.float32),
        "sentence": sentence.astype(np.int32),
        "position": position.astype(np.int32),
        "next_token": np.where(sentence >= 0, 10 * sentence + position, -1).astype(np.int32),
        "multiplicity": np.where(sentence >= 0, 1 + position, 0).astype(np.int32),
        "next_count": np.where(sentence >= 0, position, 0).astype(np.int32),
        "gate": gate.astype(np.int8),
        "count": np.array([len(own[:t])], np.int32),
        "fires": np.array([len(own)]),
    }


def triggers(found, t: int, signed: bool) -> Triggers:
    """The triggers of a model of one key on a part of the corpus."""
    values = [entry[0] for entry in found]
    minimum = np.array([min([0.0, *values])], np.float32)
    return Triggers(
        **examples(found, 1, t),
        layer_offset=np.array([0, 1]),
        total=np.array([int(2 * sum(values))]),
        maximum=np.array([max([0.0, *values])], np.float32),
        histogram=np.zeros((1, len(HISTOGRAM_EDGES) - 1), np.int64),
        prefixes=len(found),
        attributes={},
        negative=Negative(**examples(found, -1, t), minimum=minimum) if signed else None,
    )


@given(st.lists(entries, max_size=25, unique_by=lambda entry: entry[1:3]), st.integers(1, 5), st.booleans(), st.data())
@settings(max_examples=200, deadline=None)
def test_shards_of_any_kind_in_any_order_merge_into_the_whole(found, t, signed, data):
    shards = data.draw(st.integers(1, 4))
    parts = [[entry for entry in found if entry[1] % shards == shard] for shard in range(shards)]
    merged = combine_triggers([triggers(part, t, signed) for part in data.draw(st.permutations(parts))])
    whole = triggers(found, t, signed)
    for one, other in [(merged, whole), *([(merged.negative, whole.negative)] if signed else [])]:
        for name in datasets_of(TriggerExamples):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name, strict=True)
    assert (merged.prefixes, merged.total, merged.maximum) == (whole.prefixes, whole.total, whole.maximum)
    assert (merged.negative is not None) == signed
    assert not signed or merged.negative.minimum == whole.negative.minimum
