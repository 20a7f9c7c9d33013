"""Traces one prompt."""

from typing import Any

import torch

from ffkv.base.settings import documents, section
from ffkv.model.head.topk import highest
from ffkv.model.tap.hooks import relative_error
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run import Run
from ffkv.run.results.tokens import find_token
from ffkv.run.trace.layers import describe_layers, effect_table, final_table
from ffkv.run.trace.prompt import place, read_changes, read_prompt
from ffkv.run.trace.result import Trace
from ffkv.run.trace.settings import TraceOptions
from ffkv.run.trace.states import end_with_changes, run_prompt


@documents(TraceOptions)
def trace(run: Run, text: str, *, device: str = "auto", **options: Any) -> Trace:
    """Runs one prompt through the model of a run, and says which memories made its prediction.

    The first trace of a run loads the model, see `Run.model`. `docs/trace.md` defines every number.

    Args:
        run: a finished run.
        text: the prompt, to the letter. What precedes every sentence of the corpus precedes it, too.
        device: as in `Run.model`.
        {options}
    Raises:
        UserError: an option is unknown or impossible; the prompt is empty, and the model reads nothing in front of a
            text; it is longer than the context; there is no such position, memory or token; a memory is changed twice;
            the checkpoint is gone or its weights have changed.
    Examples:
        >>> trace = ffkv.trace(ffkv.open("results/tiny"), "The function returns", off="L1.17")
        >>> trace.changes
        {'L1.17': 0.0}
        >>> trace.effect.columns.tolist()[1:4]  # a token, and its probability before and after the change
        ['token', 'before', 'after']
    """
    asked = section(TraceOptions, **options)
    factors = read_changes(asked.off, asked.scale, run.anatomy)
    wanted = asked.token_id if asked.token is None else asked.token
    token = None if wanted is None else find_token(run.files, wanted)
    model = run.model(device)
    prompt = read_prompt(run, model.tokenizer, text)
    position, top = place(asked.position, len(prompt.ids)), min(asked.top, len(run.vocabulary))
    ids = torch.from_numpy(prompt.ids)[None].to(model.device)

    states = run_prompt(model, ids, position)
    logits = model.final_logits(states.end)
    token = int(highest(logits[None]).first) if token is None else token
    layers = describe_layers(run, model, states, token, top, asked.memories, factors)
    logits_deviation = relative_error(logits.cpu(), states.logits.cpu())
    effect, divergence = None, None
    if factors:
        after = model.final_logits(end_with_changes(model, ids, position, factors, asked.everywhere))
        effect, divergence = effect_table(logits, after, token, top, run.vocabulary)
    return Trace(
        run=run.name,
        text=prompt.text,
        note=prompt.note,
        position=position,
        token_id=token,
        token=run.vocabulary[token],
        changes={memory_name(*changed): factor for changed, factor in factors.items()},
        everywhere=asked.everywhere,
        tokens=prompt.tokens,
        final=final_table(logits, token, top, run.vocabulary),
        **layers,
        logits_deviation=logits_deviation,
        deviation=max(logits_deviation, *layers["sums"]["memories"], *layers["sums"]["residual"]),
        effect=effect,
        divergence=divergence,
    )
