"""What the model predicts behind every token of many texts, also with memories switched off or scaled."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ffkv.base.batching import batches, pad
from ffkv.base.settings import documents, section
from ffkv.corpus.corpus_file import NONE
from ffkv.model.head.topk import highest
from ffkv.model.tap.change import Place
from ffkv.run.results.indexes import token_texts
from ffkv.run.results.run import Run
from ffkv.run.results.run_model import RunModel
from ffkv.run.trace.prompt import Text, check_texts, pieces, read_changes, read_texts
from ffkv.run.trace.settings import Changes
from ffkv.run.trace.states import check_finite, read_end

PIECE_TOKENS = 2**14  # that are sorted into batches together
PASSES = ("", "changed_")  # without and with changes: how the names of their columns begin
COLUMNS = {"loss": float, "top_token": np.int64, "top_probability": float}


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
    bos, nothing = np.asarray(run.corpus("train").bos, np.int64), np.zeros(0, np.int64)
    first = max(0, len(bos) - 1)  # the first token behind which something is predicted
    rows = [np.concatenate([bos, text.ids]) for text in piece]
    counts = np.array([len(row) - first for row in rows], np.int64)
    starts = np.cumsum([0, *counts])
    following = np.concatenate([nothing, *(np.append(row[first + 1 :], NONE) for row in rows)])
    passes = [{}, factors] if factors else [{}]
    found = {
        f"{prefix}{name}": np.empty(len(following), kind)
        for prefix, _ in zip(PASSES, passes)
        for name, kind in COLUMNS.items()
    } | ({"divergence": np.empty(len(following))} if factors else {})
    for numbers in batches(np.array([len(row) for row in rows], np.int64), run.settings.batches.tokens):
        ids = pad([rows[number] for number in numbers], model.device)
        read = torch.arange(ids.shape[1]) >= first
        read = read & (torch.arange(ids.shape[1]) < torch.from_numpy(first + counts[numbers])[:, None])
        places = np.concatenate([np.arange(starts[number], starts[number + 1]) for number in numbers])
        ends = [read_end(model, ids, changed)[read.to(model.device)] for changed in passes]
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

    `following`: ids of the tokens that follow; `NONE` where none does [token]. `changed`: the logits with the changes, if
    there are any.
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
