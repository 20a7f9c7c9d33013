"""The coefficients of one memory on sentences of the corpus."""

import numpy as np
import pytest

import ffkv
from ffkv.activations.trigger_file import read_triggers
from ffkv.base.errors import UserError
from ffkv.run.trace.coefficients import coefficients


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mixtral", "gemma2", "fairseq"])
def test_the_last_coefficient_of_a_trigger_prefix_is_the_stored_one(traced, kind):
    run = traced(kind)
    triggers, offsets = read_triggers(run.folder / "triggers.h5"), run.anatomy.layer_offset
    compared = 0
    for layer, memory in [(0, 3), (1, 5), (1, 11)]:
        row = offsets[layer] + memory
        kept = triggers.sentence[row] >= 0
        sentences, positions = triggers.sentence[row][kept], triggers.position[row][kept]
        found = coefficients(run, layer, memory, sentences.tolist(), "cpu")
        assert [len(own) for own in found] == run.corpus("train").lengths[sentences].tolist()
        last = [own[position - 1] for own, position in zip(found, positions, strict=True)]
        # Rounding of float32: the pass for triggers ran batches of other shapes.
        np.testing.assert_allclose(last, triggers.coefficient[row][kept], rtol=1e-4, atol=1e-6)
        compared += len(last)
    assert compared > 5


def test_any_sentences_in_any_order_give_what_each_gives_alone(traced):
    run = traced("gpt2")
    numbers = [7, 0, 20, 7]
    together = coefficients(run, 1, 2, numbers, "cpu")
    for number, own in zip(numbers, together, strict=True):
        assert own.dtype == np.float32
        np.testing.assert_allclose(own, coefficients(run, 1, 2, [number], "cpu")[0], rtol=1e-4, atol=1e-6)
    assert coefficients(run, 1, 2, [], "cpu") == []


def test_they_are_those_of_a_trace_of_the_sentence(traced):
    run = traced("gpt2")
    text = run.corpus("train").texts[4]
    listed = ffkv.trace(run, text, memories=1000, device="cpu").contributions.set_index("name")
    assert coefficients(run, 2, 6, [4], "cpu")[0][-1] == pytest.approx(listed["coefficient"]["L2.6"], rel=1e-4)


@pytest.mark.parametrize(
    ("layer", "memory", "sentence", "message"),
    [
        (3, 0, 0, "There is no layer 3"),
        (0, 64, 0, "There is no memory 64"),
        (0, 0, 10_000, r"There is no sentence 10000. The train split has sentences 0 to"),
        (0, 0, -1, "There is no sentence -1"),
    ],
)
def test_what_does_not_exist_is_refused(traced, layer, memory, sentence, message):
    with pytest.raises(UserError, match=message):
        coefficients(traced("gpt2"), layer, memory, [sentence], "cpu")


@pytest.mark.parametrize(
    ("layer", "memory", "sentences", "message"),
    [
        (1, 17, 0, r"sentences is 0\. Write a list of numbers of sentences, such as \[0\]"),
        (1, 17, ["a"], "A number in sentences is 'a'. Write a whole number"),
        ("1", 17, [0], "layer is '1'. Write a whole number"),
        (1, 1.5, [0], "memory is 1.5. Write a whole number"),
    ],
)
def test_what_is_no_number_is_refused(traced, layer, memory, sentences, message):
    with pytest.raises(UserError, match=message):
        coefficients(traced("gpt2"), layer, memory, sentences, "cpu")


@pytest.mark.parametrize("device", ["gpu", "mps", "cuda:x", None])
def test_a_device_is_refused_in_the_words_of_its_setting(traced, device):
    """Torch's own words blamed the checkpoint."""
    run = traced("gpt2")
    for ask in (
        lambda: run.model(device),
        lambda: ffkv.trace(run, "w1", device=device),
        lambda: coefficients(run, 0, 0, [0], device),
    ):
        with pytest.raises(UserError, match=f"^device is {device!r}: must be "):
            ask()
