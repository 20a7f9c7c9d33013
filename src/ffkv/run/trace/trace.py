"""Traces one prompt, or several: what each layer predicts, what its memories add at the chosen token, and the model's prediction."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ffkv.base.errors import UserError
from ffkv.base.settings import documents, section
from ffkv.branches.refinement.measure import classify
from ffkv.model.effects import edges as effects
from ffkv.model.head.lens import Lens
from ffkv.model.head.topk import highest, log_probabilities, rank
from ffkv.model.keys_and_values import error_of, in_residual, values_in_place
from ffkv.model.tap.change import Place
from ffkv.model.tap.hooks import relative_error
from ffkv.run.results.indexes import pushed_tokens, token_texts
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.readings import lens_of
from ffkv.run.results.run import Run
from ffkv.run.results.run_model import RunModel
from ffkv.run.results.tokens import find_token
from ffkv.run.trace.prompt import check_prompt, check_texts, place, read_changes, read_prompt
from ffkv.run.trace.result import POINTS, Trace, largest
from ffkv.run.trace.settings import TraceOptions
from ffkv.run.trace.states import States, residual_deviations, run_prompt


def predict_layers(run: Run, lens: Lens, states: States, top: int) -> tuple[np.ndarray, pd.DataFrame]:
    """Reads the top tokens of r, y and o of every layer at every position. r is o - y.

    Returns their ids, the highest logit first [position, layer, point, rank], and `Trace.predictions`.
    """
    shape = (len(states.y[0]), len(states.y), len(POINTS), top)
    ids, probability = np.zeros(shape, np.int64), np.zeros(shape)
    reads = (lens.state, lens.change, lens.state)  # in the order of `POINTS`
    for layer, (y, o) in enumerate(zip(states.y, states.o, strict=True)):
        vectors = (o - y, y, o)
        for read in dict.fromkeys(reads):  # one alone if the lens reads states and changes alike
            points = [point for point, own in enumerate(reads) if own == read]
            together = torch.cat([vectors[point] for point in points])
            found = [_top(logits, top) for _, logits in lens.chunks(together, layer, change=read == lens.change)]
            for into, parts in zip((ids, probability), zip(*found)):
                into[:, layer, points] = np.concatenate(parts).reshape(len(points), -1, top).swapaxes(0, 1)
    position, at, point, place = np.indices(shape).reshape(4, -1)
    table = {
        "position": position,
        "layer": at,
        "point": np.array(POINTS, object)[point],
        "rank": place,
        "token_id": ids.ravel(),
        "token": token_texts(ids.ravel(), run.vocabulary),
        "probability": probability.ravel(),
    }
    return ids, pd.DataFrame(table)


def _top(logits: Tensor, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids and probabilities of the top tokens of logits [n, vocabulary], each [n, top]. The first one is top(h)."""
    extremes = highest(logits, top)
    ids = extremes.ids.clone()
    # Of equal logits the lowest id comes first. It may stand further behind, or be none of those found.
    elsewhere = (ids == extremes.first[:, None]) & (ids[:, :1] != extremes.first[:, None])
    ids = torch.where(elsewhere, ids[:, :1], ids)
    ids[:, 0] = extremes.first
    return ids.cpu().numpy(), log_probabilities(logits, ids).exp().cpu().numpy()


class LayerParts(NamedTuple):
    """What the FF output of one layer is the sum of, at the chosen token."""

    listed: Tensor  # the memories that are listed, the largest size first [part]
    coefficient: Tensor  # their coefficients [part]
    size: Tensor  # their |m_i| ‖v_i‖ times the factor [part]
    vectors: Tensor  # their contributions; then that of all other memories, the bias, the error of a dictionary, if any, and y itself [., d]
    others: int  # number of the other memories whose coefficient is not 0
    all_sizes: float  # sum of the sizes of all memories
    deviation: float  # largest relative deviation of the sum from y

    @property
    def shares(self) -> Tensor:
        """The share of y of each part but y, along y [.]. NaN if y is 0."""
        y = self.vectors[-1]
        return self.vectors[:-1] @ y / (y @ y)


def split_layers(
    model: RunModel, states: States, token: int, memories: int, changed: Collection[Place]
) -> list[LayerParts]:
    """Splits y of every layer at the chosen token into contributions.

    Listed are those with the largest size, and those with the largest effect on the logit of `token` to first order, `memories` of each
    per layer; and those that `changed`.
    """
    (gradient,) = model.head.gradient(states.end[None], model.anatomy.read_as, lambda logits: logits[0, token])
    own = [[memory for number, memory in changed if number == layer.index] for layer in model.anatomy.layers]
    parts = []
    for at, layer in enumerate(model.anatomy.layers):
        v, _ = values_in_place(model.model, layer)
        if at not in model.norms:
            model.norms[at] = v.norm(dim=1)
        stored = states.s[at], states.m[at], states.b[at], states.y[at][states.position]
        s, m, b, y = (tensor.to(v.device) for tensor in stored)
        sizes = s.abs() * m.abs() * model.norms[at]
        effects = (s * m * (v @ gradient.to(v.device))).abs()
        count = min(memories, len(m))
        chosen = torch.cat([sizes.topk(count).indices, effects.topk(count).indices])
        always = torch.tensor(own[at], dtype=torch.long, device=v.device)
        chosen = torch.cat([chosen[m[chosen] != 0], always]).unique()
        chosen = chosen[sizes[chosen].argsort(descending=True, stable=True)]
        contributions = s * m[chosen, None] * v[chosen]
        bias = s * in_residual(model.model, layer, b[None])[0].float()
        u = states.u[at]
        left = [] if u is None else [error_of(model.model, layer, u.to(v.device), s).float()]
        together = s * (m @ v)
        rest = (together - contributions.sum(0), bias, *left, y)
        of_layer = LayerParts(
            listed=chosen,
            coefficient=m[chosen],
            size=sizes[chosen],
            vectors=torch.cat([contributions, *(part[None] for part in rest)]),
            others=int((m != 0).sum() - (m[chosen] != 0).sum()),
            all_sizes=float(sizes.double().sum()),
            deviation=relative_error(sum(left, together + bias), y),
        )
        parts.append(of_layer)
    return parts


def logit_changes(model: RunModel, end: Tensor, parts: list[LayerParts], token: int) -> list[Tensor]:
    """Computes how much lower the token's logit is without each part: logit(h) - logit(h - part) [layer][part].

    `end`: h, what the head reads at the chosen token [d].
    """
    without = torch.cat([end[None], *(end - part.vectors.to(end.device) for part in parts)])
    logits = model.head.token_logits(without, token, model.anatomy.read_as).cpu()
    return [*(logits[0] - logits[1:]).split([len(part.vectors) for part in parts])]


def _describe(
    run: Run, model: RunModel, states: States, token: int, top: int, memories: int, changed: Collection[Place]
) -> dict[str, Any]:
    """Returns the attributes of `Trace` that are about states, by name.

    `token` is the chosen next token. `top` and `memories`: see `TraceOptions`. Memories in `changed` are listed anyway.
    """
    logits = model.final_logits(states.end)
    logits_deviation = relative_error(logits.cpu(), states.logits.cpu())
    ids, predictions = predict_layers(run, lens_of(run.files, model.head), states, top)
    parts = split_layers(model, states, token, memories, changed)
    changes = logit_changes(model, states.end, parts, token)
    sums = {"memories": [part.deviation for part in parts], "residual": residual_deviations(model, states)}
    top_r, top_y, top_o = ids[states.position, :, :, 0].T
    at_token = [(y[states.position], o[states.position]) for y, o in zip(states.y, states.o)]
    layers = {
        "layer": range(len(parts)),
        "case": classify(top_r, top_y, top_o),
        "top_residual": token_texts(top_r, run.vocabulary),
        "top_ffn": token_texts(top_y, run.vocabulary),
        "top_output": token_texts(top_o, run.vocabulary),
        "norm_residual": [float((o - y).norm()) for y, o in at_token],
        "norm_ffn": [float(y.norm()) for y, _ in at_token],
        "norm_output": [float(o.norm()) for _, o in at_token],
        "factor": [float(s) for s in states.s],
        "logit": [float(change[-1]) for change in changes],
        "active": [int((m > 0).sum()) for m in states.m],
        "nonzero": [int((m != 0).sum()) for m in states.m],
        "listed": [len(part.listed) for part in parts],
        "listed_share": [float(part.size.double().sum()) / (part.all_sizes or np.nan) for part in parts],
    }
    listed, rest = [], []
    for layer, (part, change) in enumerate(zip(parts, changes, strict=True)):
        columns = (each.tolist() for each in (part.listed, part.coefficient, part.size, part.shares, change))
        listed += [(layer, memory, memory_name(layer, memory), *numbers) for memory, *numbers in zip(*columns)]
        behind = len(part.listed)
        of_rest = part.vectors[behind:-1].norm(dim=1), part.shares[behind:], change[behind:-1]
        what = ("other memories", "bias", "error"), (part.others, 0, 0)  # an error is of a dictionary alone
        rest += [(layer, *row) for row in zip(*what, *(each.tolist() for each in of_rest))]
    table = pd.DataFrame(listed, columns=["layer", "memory", "name", "coefficient", "size", "share", "logit"])
    return {
        "final": final_table(logits, token, top, run.vocabulary),
        "predictions": predictions,
        "layers": pd.DataFrame(layers),
        "contributions": table.assign(**pushed_tokens(run.files, table)),
        "remainders": pd.DataFrame(rest, columns=["layer", "part", "memories", "norm", "share", "logit"]),
        "sums": pd.DataFrame({"layer": range(len(parts)), **sums}),
        "logits_deviation": logits_deviation,
        "deviation": max(logits_deviation, *sums["memories"], *sums["residual"]),
    }


def final_table(logits: Tensor, token: int, top: int, vocabulary: Sequence[str]) -> pd.DataFrame:
    """`Trace.final`, from the logits of the final prediction [vocabulary]."""
    tops, _ = _top(logits[None], top)
    ids = [*dict.fromkeys([*tops.ravel().tolist(), token])]
    chosen = torch.tensor(ids, device=logits.device)
    ranks = rank(logits.expand(len(ids), -1), chosen)
    return pd.DataFrame(
        {
            "rank": ranks.cpu().numpy(),
            "token_id": ids,
            "token": token_texts(np.asarray(ids), vocabulary),
            "probability": log_probabilities(logits[None], chosen[None])[0].exp().cpu().numpy(),
        }
    )


def effect_table(
    before: Tensor, after: Tensor, token: int, top: int, vocabulary: Sequence[str]
) -> tuple[pd.DataFrame, float]:
    """`Trace.effect` and `Trace.divergence`, from the logits of the final prediction before and after [vocabulary]."""
    tops, _ = _top(torch.stack([before, after]), top)
    ids = np.array([*dict.fromkeys([*tops.ravel().tolist(), token])])
    log_p, log_p_after = (logits.double().log_softmax(-1).cpu().numpy() for logits in (before, after))
    p = np.exp(log_p)
    table = pd.DataFrame(
        {
            "token_id": ids,
            "token": token_texts(ids, vocabulary),
            "before": p[ids],
            "after": np.exp(log_p_after[ids]),
            "change": log_p_after[ids] - log_p[ids],
        }
    ).sort_values("before", ascending=False, kind="stable", ignore_index=True)
    possible = p > 0  # a token that the model never predicts adds nothing, also where its logit is minus infinity
    return table, float((p[possible] * (log_p - log_p_after)[possible]).sum())


EDGES = ("edges", "parts", "edge_notes")  # of the unchanged model


@documents(TraceOptions)
def trace_all(run: Run, texts: Iterable[str], *, device: str = "auto", **options: Any) -> dict[str, pd.DataFrame]:
    """Traces prompts one after the other, and puts the tables of the traces below each other.

    Most of the time of a trace goes into reading vectors out, so that batches would save little. `predict` and
    `coefficients` work in batches.

    Args:
        run: a finished run.
        texts: the prompts, see `trace`.
        device: as in `Run.model`.
        {options}
    Returns:
        The tables of `Trace` by name, such as "contributions"; if memories change, those of `Trace.changed` too, as
        "changed_contributions". Their first column is `prompt`, its place in `texts`, from 0.
    Raises:
        UserError: as in `trace`; or there is no prompt.
    Examples:
        >>> tables = ffkv.trace_all(ffkv.open("results/tiny"), ["The function returns", "Return a"], memories=3)
        >>> tables["contributions"].groupby(["prompt", "layer"]).size().index.tolist()
        [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    check_texts(run, texts)
    traces = [trace(run, text, device=device, **options) for text in texts]
    if not traces:
        raise UserError("There is no prompt in texts. Write one or more.")
    tables, together = [_tables(each) for each in traces], dict[str, pd.DataFrame]()
    for name, first in tables[0].items():
        table = pd.concat([each[name].assign(prompt=at) for at, each in enumerate(tables)], ignore_index=True)
        together[name] = table[["prompt", *first]]
    return together


def _tables(trace: Trace, prefix: str = "") -> dict[str, pd.DataFrame]:
    own = {f"{prefix}{name}": value for name, value in vars(trace).items() if isinstance(value, pd.DataFrame)}
    return own if trace.changed is None else {**own, **_tables(trace.changed, "changed_")}


@documents(TraceOptions)
def trace(run: Run, text: str, *, device: str = "auto", **options: Any) -> Trace:
    """Runs one prompt through the model of a run, and says which memories made its prediction.

    The first trace of a run loads the model, see `Run.model`. `docs/trace.md` defines every number.

    Args:
        run: a finished run; its `translated` for tokens of values, residuals and outputs in that reading.
        text: the prompt, to the letter. What precedes every sentence of the corpus precedes it, too.
        device: as in `Run.model`.
        {options}
    Raises:
        UserError: an option is unknown or impossible; the prompt is empty, and the model reads nothing in front of a
            text; it is longer than the context; there is no such position, memory or token; a memory is changed twice;
            the checkpoint is gone or its weights have changed; states overflow.
    Examples:
        >>> trace = ffkv.trace(ffkv.open("results/tiny"), "The function returns", off="L1.17")
        >>> trace.changes
        {'L1.17': 0.0}
        >>> trace.effect.columns.tolist()[1:4]  # a token, and its probability before and after the change
        ['token', 'before', 'after']
        >>> trace.changed.contributions.query("name == 'L1.17'")["coefficient"].item()  # the states after the change
        0.0
    """
    check_prompt(run, text)
    asked = section(TraceOptions, **options)
    factors = read_changes(asked.off, asked.scale, run.files)
    wanted = asked.token_id if asked.token is None else asked.token
    token = None if wanted is None else find_token(run.files, wanted)
    model = run.model(device)
    prompt = read_prompt(run, model.tokenizer, text)
    position, top = place(asked.position, len(prompt.ids)), min(asked.top, len(run.vocabulary))
    ids = torch.from_numpy(prompt.ids)[None].to(model.device)
    states = run_prompt(model, ids, position)
    logits = model.final_logits(states.end)
    token = int(highest(logits[None]).first) if token is None else token
    own = _describe(run, model, states, token, top, asked.memories, factors)
    question: dict[str, Any] = {
        "run": run.name,
        "reading": run.files.reading,
        "text": prompt.text,
        "note": prompt.note,
        "position": position,
        "token_id": token,
        "token": run.vocabulary[token],
        "changes": {memory_name(*named): factor for named, factor in factors.items()},
        "everywhere": asked.everywhere,
        "tokens": prompt.tokens,
    }
    if asked.edges and len(own["contributions"]):
        question |= _describe_edges(model, ids, position, own["contributions"], asked.edges)
    changed, effect, divergence = None, None, None
    if factors:
        del states  # they can be large
        states = run_prompt(model, ids, position, factors, None if asked.everywhere else position)
        of_both = {name: value for name, value in question.items() if name not in EDGES}
        changed = Trace(**of_both, **_describe(run, model, states, token, top, asked.memories, factors))
        effect, divergence = effect_table(logits, model.final_logits(states.end), token, top, run.vocabulary)
    return Trace(**question, **own, effect=effect, divergence=divergence, changed=changed)


def _describe_edges(
    model: RunModel, ids: Tensor, position: int, contributions: pd.DataFrame, count: int
) -> dict[str, Any]:
    """Returns the attributes `EDGES` of `Trace`: of the `count` memories with the largest change of the logit. `ids`: [1, token]."""
    memories = largest(contributions, contributions["logit"], count).sort_values(["layer", "memory"], ignore_index=True)
    memories = memories.assign(position=position)
    found = effects.edges(model, ids, memories, memories)
    names = memories["name"].to_numpy()
    named = {name: names[found.edges[name]] for name in ("source", "target")}
    return {
        "edges": found.edges.assign(**named),
        "parts": found.parts.assign(target=names[found.parts["target"]]),
        "edge_notes": " ".join(found.notes),
    }
