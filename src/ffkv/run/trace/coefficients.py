"""Of many texts: coefficients of memories on every token, and what the model predicts behind it, also with memories off or scaled; and
the logits of values."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import torch
from pyarrow import parquet
from torch import Tensor

from ffkv.base.batching import batches, pad
from ffkv.base.files.atomic import atomic
from ffkv.base.settings import documents, section
from ffkv.corpus.corpus_file import NONE
from ffkv.corpus.encode import behind
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects.rerun import read_ends
from ffkv.model.head.head import Head
from ffkv.model.head.head_file import load_head
from ffkv.model.head.topk import highest
from ffkv.model.tap.change import Place, scaled
from ffkv.model.tap.tap import tap
from ffkv.run.results.collections import choose_memories
from ffkv.run.results.indexes import token_texts
from ffkv.run.results.memory_name import as_names, memory_name
from ffkv.run.results.run import Run
from ffkv.run.results.run_model import RunModel
from ffkv.run.trace.prompt import Text, check_texts, index_of, pieces, read_changes, read_texts
from ffkv.run.trace.settings import Changes
from ffkv.run.trace.states import check_finite

PIECE_BYTES = 2**27  # of coefficients that are computed at a time
PIECE_TOKENS = 2**14  # that are sorted into batches together
PASSES = ("", "changed_")  # without and with changes: how the names of their columns begin
COLUMNS = {"loss": float, "top_token": np.int64, "top_probability": float}


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
    rows = [behind(beginning, ids) for ids in sentences]

    def on_tensor(numbers: np.ndarray, layer: Layer, quantity: str, m: Tensor) -> None:
        on_coefficients(numbers, layer, m[:, len(beginning) :])

    with tap(loaded.model, layers, "m") as run:
        for numbers in batches(np.array([len(row) for row in rows], np.int64), batch_tokens):
            run(pad([rows[number] for number in numbers], loaded.device), partial(on_tensor, numbers))


def coefficients(
    run: Run, texts: Iterable[str | int], memories: str | Iterable[str] | None = None, device: str = "auto"
) -> pd.DataFrame:
    """Returns the coefficients of memories on every token of texts, in one pass of batches.

    A coefficient is that of the prefix that ends at the token: later tokens do not change it. The pass ends after the
    last layer that is asked for. The model is kept, see `Run.model`.

    Args:
        run: a finished run.
        texts: own texts, to the letter; or numbers of sentences of the train split. What precedes every sentence of the
            corpus precedes each of them.
        memories: names such as "L3.17", "L3.17-40" or "L3", all of a layer. By default all memories.
        device: as in `Run.model`.
    Returns:
        Coefficients, float32: a row per token, without the tokens in front of a text, and a column per memory, in the
        order of the layers. The index has three levels: `text`, the place of the text in `texts`, from 0; `position`,
        that of the token as in `Trace.tokens`; and `token`, its text in the vocabulary. A stored trigger example has
        the same number up to rounding: a batch of another shape adds in another order.
    Raises:
        UserError: there is no such memory or sentence; `texts` is no list of texts and numbers; a text cannot be read,
            see `trace`; or the checkpoint is gone or its weights have changed.
    Examples:
        >>> m = ffkv.coefficients(ffkv.open("results/tiny"), ["The function returns", "Return a list"], "L1.17, L0")
        >>> m["L1.17"].groupby("text").max().index.tolist()  # the highest coefficient in each text
        [0, 1]
        >>> m.loc[1].shape[1]  # the memories of layer 0, and L1.17
        129
    """
    return pd.concat(_frames(run, texts, memories, device))


def write_coefficients(
    path: Path | str,
    run: Run,
    texts: Iterable[str | int],
    memories: str | Iterable[str] | None = None,
    device: str = "auto",
) -> None:
    """Writes what `coefficients` returns into a parquet file, piece by piece, for more texts than the memory holds.

    `pandas.read_parquet(path, columns=["L1.17"])` reads some of the memories again. The texts may come one at a time.

    Args:
        path: the file.
        run, texts, memories, device: as in `coefficients`.
    Raises:
        UserError: as in `coefficients`; or the file cannot be written.
    Examples:
        >>> run = ffkv.open("results/tiny")
        >>> ffkv.write_coefficients("m.parquet", run, (f"Return {n} lists" for n in range(20)), "L1")
        >>> import pandas
        >>> m = pandas.read_parquet("m.parquet", columns=["L1.17"])
        >>> m.columns.tolist(), m.index.names == ["text", "position", "token"]
        (['L1.17'], True)
    """
    with atomic(path, summed=False) as temporary, contextlib.ExitStack() as stack:
        writer: parquet.ParquetWriter | None = None
        for frame in _frames(run, texts, memories, device):
            table = pyarrow.Table.from_pandas(frame)
            if writer is None:
                file = stack.enter_context(temporary.open("wb"))  # pyarrow's own does not say why it cannot be closed
                writer = stack.enter_context(parquet.ParquetWriter(file, table.schema))
            writer.write_table(table)


def _frames(
    run: Run, texts: Iterable[str | int], memories: str | Iterable[str] | None, device: str
) -> Iterator[pd.DataFrame]:
    check_texts(run, texts)
    layer_of, memory_of = choose_memories(run.files, as_names(memories))
    names = pd.Index(map(memory_name, layer_of.tolist(), memory_of.tolist()), name="memory")
    layers = [layer for layer in run.anatomy.layers if layer.index in layer_of]
    model, corpus = run.model(device), run.corpus("train")

    def read(piece: list[Text]) -> pd.DataFrame:
        ids = [text.ids for text in piece]
        ends = np.cumsum([0, *map(len, ids)])
        found = np.empty((ends[-1], len(names)), np.float32)

        def on_coefficients(numbers: np.ndarray, layer: Layer, m: Tensor) -> None:
            own = slice(*np.searchsorted(layer_of, [layer.index, layer.index + 1]))
            chosen = m[..., torch.from_numpy(memory_of[own]).to(m.device)].float().cpu().numpy()
            for number, line in zip(numbers.tolist(), chosen):
                found[ends[number] : ends[number + 1], own] = line[: len(ids[number])]

        for_each_coefficient(model, layers, corpus.bos, ids, model.batch_tokens, on_coefficients)
        return pd.DataFrame(found, index_of(run, piece), names)

    yield from map(read, pieces(read_texts(run, model, texts), PIECE_BYTES // (4 * len(names))))


def head_of(run: Run, device: str = "auto") -> Head:
    """Returns the head with which the run projected its values onto the vocabulary. The blocks of the model are not loaded.

    Raises UserError if the file of the head is damaged, or there is no such device.
    """
    return load_head(run.folder / "model", device, run.settings.values.projection, run.trust_remote_code)


def value_logits(run: Run, head: Head, layer: int, memories: np.ndarray) -> Iterator[tuple[slice, np.ndarray, Tensor]]:
    """Reads the values of some memories of a layer, and their logits, a bounded number at a time.

    Yields which of the memories; their values, float32 [memory, d]; and their logits, float32 [memory, vocabulary].
    `memories`: their numbers in the layer, ascending [memory].
    """
    rows = run.anatomy.layer_offset[layer] + np.asarray(memories, np.int64)
    with run.files.open_values() as file:
        values = file["value"][rows]
    for chunk, logits in head.chunks(torch.from_numpy(values), layer, change=True):
        yield chunk, values[chunk], logits


@documents(Changes)
def predict(run: Run, texts: Iterable[str | int], *, device: str = "auto", **options: Any) -> pd.DataFrame:
    """Returns what the model predicts behind every token of texts, in batches, also if memories change at every token.

    The mean of `loss` is the model's loss on the texts; that of `changed_loss` is its loss with the changes. What is
    measured is the total effect, see docs/trace.md. The model is kept, see `Run.model`.

    Args:
        run: a finished run.
        texts: as in `coefficients`.
        device: as in `Run.model`.
        {options}
    Returns:
        One row per token, from the one in front of each text on, if there is one.
    Columns:
        text: place of the text in `texts`, from 0.
        position: that of the token, as in `Trace.tokens`.
        token: its text in the vocabulary.
        next_token: the token that follows in the text; "" behind the last one.
        loss: minus the log-probability of next_token, nats; NaN behind the last token.
        top_token: the token with the highest logit.
        top_probability: its probability.
        changed_loss, changed_top_token, changed_top_probability: the same with the changes. This column and all others
            about them exist only if memories change.
        divergence: KL(p‖p_c), nats: p without the changes, p_c with them.
    Raises:
        UserError: a memory does not exist, or is changed twice; or as in `coefficients`.
    Examples:
        >>> table = ffkv.predict(ffkv.open("results/tiny"), ["The function returns a list"], off="L1.17, L1.3")
        >>> table["next_token"].iloc[-1], table["loss"].isna().tolist().count(True)  # nothing follows the last token
        ('', 1)
        >>> table.groupby("text").tail(1).columns.tolist()[-4:]  # the next token of each text
        ['changed_loss', 'changed_top_token', 'changed_top_probability', 'divergence']
    """
    asked = section(Changes, **options)
    check_texts(run, texts)
    factors = read_changes(asked.off, asked.scale, run.files)
    model = run.model(device)
    of_pieces = (_of_piece(run, model, piece, factors) for piece in pieces(read_texts(run, model, texts), PIECE_TOKENS))
    return pd.concat(of_pieces, ignore_index=True)


def _of_piece(run: Run, model: RunModel, piece: Sequence[Text], factors: Mapping[Place, float]) -> pd.DataFrame:
    bos, nothing = run.corpus("train").bos, np.zeros(0, np.int64)
    first = max(0, len(bos) - 1)  # the first token behind which something is predicted
    rows = [behind(bos, text.ids) for text in piece]
    counts = np.array([len(row) - first for row in rows], np.int64)
    starts = np.cumsum([0, *counts])
    following = np.concatenate([nothing, *(np.append(row[first + 1 :], NONE) for row in rows)])
    passes = [{}, factors] if factors else [{}]
    kinds = {f"{prefix}{name}": kind for prefix, _ in zip(PASSES, passes) for name, kind in COLUMNS.items()}
    kinds |= {"divergence": float} if factors else {}
    found = {name: np.empty(len(following), kind) for name, kind in kinds.items()}
    for numbers in batches(np.array([len(row) for row in rows], np.int64), model.batch_tokens):
        ids = pad([rows[number] for number in numbers], model.device)
        place, ends_at = torch.arange(ids.shape[1]), torch.from_numpy(first + counts[numbers])[:, None]
        read = (place >= first) & (place < ends_at)
        places = np.concatenate([np.arange(starts[number], starts[number + 1]) for number in numbers])
        ends = []
        for changed in passes:
            with scaled(model.model, model.anatomy.layers, changed):
                ends.append(read_ends(model, ids)[read.to(model.device)])
        check_finite(model, ends[:1])
        for chunk, logits in model.head.chunks(ends[0], model.anatomy.read_as):
            after = [model.head.logits(end[chunk], model.anatomy.read_as) for end in ends[1:]]
            for name, values in _compare(torch.from_numpy(following[places[chunk]]), logits, *after).items():
                found[name][places[chunk]] = values
    tokens = {
        "text": np.repeat(np.array([text.number for text in piece], np.int64), counts),
        "position": np.concatenate([nothing, *(np.arange(first, len(row)) for row in rows)]),
        "token": token_texts(np.concatenate([nothing, *(row[first:] for row in rows)]), run.vocabulary),
        "next_token": token_texts(following, run.vocabulary),
    }
    texts = {name: token_texts(found[name], run.vocabulary) for name in found if name.endswith("top_token")}
    return pd.DataFrame({**tokens, **found, **texts})


def _compare(following: Tensor, before: Tensor, *changed: Tensor) -> dict[str, np.ndarray]:
    """Returns the columns of `predict` about some tokens, with ids in place of texts, from logits [token, vocabulary].

    `following`: ids of the next tokens; `NONE` where there is none [token]. `changed`: the logits with the changes, if there are any.
    """
    columns: dict[str, Tensor] = {}
    following = following.to(before.device)[:, None]
    log_p = [logits.double().log_softmax(-1) for logits in (before, *changed)]
    for prefix, logits, log in zip(PASSES, (before, *changed), log_p):
        top = highest(logits).first
        columns[f"{prefix}loss"] = -log.gather(-1, following.clamp_min(0)).where(following != NONE, torch.nan)[:, 0]
        columns[f"{prefix}top_token"] = top
        columns[f"{prefix}top_probability"] = log.gather(-1, top[:, None])[:, 0].exp()
    if changed:
        p = log_p[0].exp()  # a token that the model never predicts adds nothing, also where its logit is minus infinity
        columns["divergence"] = torch.where(p > 0, p * (log_p[0] - log_p[1]), 0.0).sum(-1)
    return {name: column.cpu().numpy() for name, column in columns.items()}
