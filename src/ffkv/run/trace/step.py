"""Traces one prompt, or several."""

from collections.abc import Collection, Iterable
from typing import Any

import pandas as pd
import torch

from ffkv.base.errors import UserError
from ffkv.base.settings import documents, section
from ffkv.model.head.topk import highest
from ffkv.model.tap.change import Place
from ffkv.model.tap.hooks import relative_error
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run import Run, check_run
from ffkv.run.results.run_model import RunModel
from ffkv.run.results.tokens import find_token
from ffkv.run.trace.edges import describe_edges
from ffkv.run.trace.layers import describe_layers, effect_table, final_table
from ffkv.run.trace.prompt import check_prompt, place, read_changes, read_prompt
from ffkv.run.trace.result import Trace
from ffkv.run.trace.settings import TraceOptions
from ffkv.run.trace.states import States, run_prompt
from ffkv.run.trace.texts import check_texts

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
    tables = [_tables(each) for each in traces]
    together = {name: pd.concat([each[name].assign(prompt=at) for at, each in enumerate(tables)]) for name in tables[0]}
    return {name: table[["prompt", *table.columns[:-1]]].reset_index(drop=True) for name, table in together.items()}


def _tables(trace: Trace, prefix: str = "") -> dict[str, pd.DataFrame]:
    """Returns the tables of a trace by name, and those with changes behind them."""
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
    check_run(run)
    check_prompt(text)
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
        tokens = run.settings.batches.tokens
        question |= describe_edges(model, ids, position, own["contributions"], asked.edges, tokens)
    changed, effect, divergence = None, None, None
    if factors:
        del states  # they can be large
        states = run_prompt(model, ids, position, factors, None if asked.everywhere else position)
        of_both = {name: value for name, value in question.items() if name not in EDGES}
        changed = Trace(**of_both, **_describe(run, model, states, token, top, asked.memories, factors))
        effect, divergence = effect_table(logits, model.final_logits(states.end), token, top, run.vocabulary)
    return Trace(**question, **own, effect=effect, divergence=divergence, changed=changed)


def _describe(
    run: Run, model: RunModel, states: States, token: int, top: int, memories: int, listed: Collection[Place]
) -> dict[str, Any]:
    """Returns the attributes of `Trace` that are about states, see `describe_layers`."""
    logits = model.final_logits(states.end)
    layers = describe_layers(run, model, states, token, top, memories, listed)
    logits_deviation = relative_error(logits.cpu(), states.logits.cpu())
    return {
        "final": final_table(logits, token, top, run.vocabulary),
        **layers,
        "logits_deviation": logits_deviation,
        "deviation": max(logits_deviation, *layers["sums"]["memories"], *layers["sums"]["residual"]),
    }
