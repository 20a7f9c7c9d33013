"""Of memories, what their coefficients are on every token of sentences of the corpus, and the logits of their values."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ffkv.base.batching import batches, pad
from ffkv.base.errors import UserError
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.head.head import Head
from ffkv.model.head.head_file import load_head
from ffkv.model.tap.tap import tap
from ffkv.run.results.memory_name import check_memory, whole_number
from ffkv.run.results.run import Run


def for_each_coefficient(
    loaded: LoadedModel,
    layers: Sequence[Layer],
    beginning: Sequence[int],
    sentences: Sequence[np.ndarray],
    batch_tokens: int,
    on_coefficients: Callable[[np.ndarray, Layer, Tensor], None],
) -> None:
    """Runs sentences through the model, each once, and passes on the coefficients on all their tokens.

    The coefficient on a token is that of the prefix that ends there: later tokens do not change it.

    Args:
        layers: the layers to read, in order of execution. A forward pass ends after the last one.
        beginning: token ids in front of every sentence.
        sentences: token ids [sentence][token].
        batch_tokens: the most tokens per batch, padding included.
        on_coefficients: called with the numbers of some sentences [sentence], the layer, and m without the beginning
            [sentence, token, memory]. Behind the end of a sentence m is of padding. The tensor is the model's own
            memory: use or copy it before the function returns.
    """
    rows = [np.concatenate([np.asarray(beginning, np.int64), ids]) for ids in sentences]

    def on_tensor(numbers: np.ndarray, layer: Layer, quantity: str, m: Tensor) -> None:
        on_coefficients(numbers, layer, m[:, len(beginning) :])

    with tap(loaded.model, layers, "m") as run:
        for numbers in batches(np.array([len(row) for row in rows], np.int64), batch_tokens):
            run(pad([rows[number] for number in numbers], loaded.device), partial(on_tensor, numbers))


def coefficients(run: Run, layer: int, memory: int, sentences: Sequence[int], device: str = "auto") -> list[np.ndarray]:
    """Returns the coefficient of one memory on every token of some train sentences.

    It is the coefficient of the prefix that ends at the token: later tokens do not change it. Each forward pass ends
    after the layer. The model is kept, see `Run.model`.

    Args:
        run: a finished run.
        layer: the layer, from 0.
        memory: the memory in its layer, from 0.
        sentences: numbers of sentences of the train split.
        device: as in `Run.model`.
    Returns:
        Per sentence the coefficients of its tokens, without those in front of it, float32 [sentence][token]. A stored
        trigger example of (sentence, position) has the coefficient at token `position` - 1, up to rounding: a batch of
        another shape adds in another order.
    Raises:
        UserError: there is no such memory or sentence; `sentences` is no list of whole numbers; or the checkpoint is
            gone or its weights have changed.
    Examples:
        >>> run = ffkv.open("results/tiny")
        >>> m = ffkv.coefficients(run, layer=1, memory=17, sentences=[0, 1])
        >>> len(m[0]) == len(run.corpus("train").ids(0))  # one coefficient per token
        True
    """
    layer, memory = whole_number("layer", layer), whole_number("memory", memory)
    check_memory(layer, memory, [each.memories for each in run.anatomy.layers])
    if not isinstance(sentences, Iterable):
        raise UserError(f"sentences is {sentences!r}. Write a list of numbers of sentences, such as [{sentences!r}].")
    sentences = [whole_number("A number in sentences", sentence) for sentence in sentences]
    corpus, found = run.corpus("train"), [np.zeros(0, np.float32)] * len(sentences)
    for sentence in sentences:
        if not 0 <= sentence < len(corpus):
            raise UserError(f"There is no sentence {sentence}. The train split has sentences 0 to {len(corpus) - 1}.")
    model, ids = run.model(device), [corpus.ids(sentence) for sentence in sentences]

    def on_coefficients(numbers: np.ndarray, at: Layer, m: Tensor) -> None:
        column = m[..., memory].float().cpu().numpy()
        for line, number in zip(column, numbers.tolist()):
            found[number] = line[: len(ids[number])].copy()

    tokens = run.settings.batches.tokens
    for_each_coefficient(model, [run.anatomy.layers[layer]], corpus.bos, ids, tokens, on_coefficients)
    return found


def head_of(run: Run, device: str = "auto") -> Head:
    """Returns the head with which the run projected its values onto the vocabulary. The blocks of the model are not
    loaded.

    Raises:
        UserError: the file of the head is damaged, or there is no such device.
    """
    return load_head(run.folder / "model", device, run.settings.values.projection)


def value_logits(run: Run, head: Head, layer: int, memories: np.ndarray) -> Iterator[tuple[slice, np.ndarray, Tensor]]:
    """Reads the values of some memories of a layer, and their logits, a bounded number at a time.

    Args:
        memories: numbers of the memories in their layer, ascending [memory].
    Yields:
        Which of the memories; their values, float32 [memory, d]; and their logits, float32 [memory, vocabulary].
    """
    rows = run.anatomy.layer_offset[layer] + np.asarray(memories, np.int64)
    with run.files.open_values() as file:
        values = file["value"][rows]
    for chunk, logits in head.chunks(torch.from_numpy(values), layer):
        yield chunk, values[chunk], logits
