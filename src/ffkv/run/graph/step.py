"""Makes the graph of a prediction."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ffkv.activations.trigger_file import read_triggers
from ffkv.base.errors import UserError
from ffkv.base.settings import documents, section
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.behaviours.encode import Encoded
from ffkv.branches.behaviours.smallest import Chosen, KeptBy, random_members
from ffkv.branches.behaviours.subject import Subject, patch, read_subject
from ffkv.run.graph.choose import choose
from ffkv.run.graph.links import largest_edges, measure_edges
from ffkv.run.graph.result import Graph
from ffkv.run.graph.settings import GraphOptions
from ffkv.run.results.indexes import kept_tokens
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run import Run, check_run
from ffkv.run.results.run_model import RunModel
from ffkv.run.results.tokens import find_token
from ffkv.run.trace.prompt import Prompt, check_prompt, read_prompt


@documents(GraphOptions)
def graph(run: Run, text: str, *, device: str = "auto", **options: Any) -> Graph:
    """Finds the few memories, at the tokens where they act, that make the model of a run give one answer rather than another.

    All effects are exact: the model runs again with memories patched. `docs/graphs.md` defines every number.

    Args:
        run: a finished run.
        text: the prompt, to the letter. What precedes every sentence of the corpus precedes it, too; there, no memory is patched.
        device: as in `Run.model`.
        {options}
    Raises:
        UserError: an option is unknown or impossible; there is no such token; the other prompt has another number of tokens; the
            prompt is empty or longer than the context; the model cannot be differentiated, or changed while it runs.
    Examples:
        >>> graph = ffkv.graph(ffkv.open("results/tiny"), "The function returns", share=0.5)
        >>> graph.sets.groupby("choice").size().to_dict()
        {'all': 1, 'graph': 1, 'none': 1, 'random': 20}
        >>> graph.to_networkx().has_node("answer")
        True
    """
    check_run(run)
    check_prompt(text)
    asked = section(GraphOptions, **options)
    given = {
        name: find_token(run.files, each) for name in ("answer", "wrong") if (each := getattr(asked, name)) is not None
    }
    model = run.model(device)
    prompt = read_prompt(run, model.tokenizer, text)
    first = len(run.corpus("train").bos)
    if len(prompt.ids) == first:
        raise UserError("The prompt is empty, so no memory acts at a token of it. Write a prompt of one token or more.")
    other = None if asked.other is None else _read_other(run, model, asked.other, prompt)
    mean = read_triggers(run.folder / "triggers.h5", run.anatomy.identity).mean
    ids = prompt.ids[:0] if other is None else other.ids
    baseline = asked.baseline if other is None else "patch"
    encoded = Encoded(prompt.ids, ids, 0, 0, "", len(prompt.ids) - first)
    subject = read_subject(model, model.head, encoded, mean, baseline, run.settings.batches.tokens)
    subject, probability = _with_answers(subject, **given)
    made = _make(run, subject, asked, first)
    answer, wrong = subject.prompt.answer, subject.prompt.wrong
    return Graph(
        run=run.name,
        text=prompt.text,
        answer_id=answer,
        answer=run.vocabulary[answer],
        wrong_id=wrong,
        wrong=run.vocabulary[wrong],
        probability=probability,
        baseline=baseline,
        other="" if other is None else other.text,
        share=asked.share,
        tokens=prompt.tokens,
        **made,
    )


def _read_other(run: Run, model: RunModel, text: str, prompt: Prompt) -> Prompt:
    other = read_prompt(run, model.tokenizer, text)
    if len(other.ids) != len(prompt.ids):
        raise UserError(
            f"The prompt has {len(prompt.ids)} tokens, and the other one {len(other.ids)}. Their tokens are compared one by one, so"
            " write two prompts with the same number of tokens."
        )
    return other


def _with_answers(subject: Subject, answer: int | None = None, wrong: int | None = None) -> tuple[Subject, float]:
    """Returns a subject with its two answers and their logit difference, and the probability of the answer."""
    logits = subject.head.logits(subject.unchanged.end[None], subject.loaded.anatomy.read_as)[0].double().cpu()
    order = logits.argsort(descending=True, stable=True).tolist()
    answer = next(each for each in order if each != wrong) if answer is None else answer
    wrong = next(each for each in order if each != answer) if wrong is None else wrong
    if answer == wrong:
        raise UserError("answer and wrong are the same token. Name two.")
    prompt = subject.prompt._replace(answer=answer, wrong=wrong)
    difference = float(logits[answer] - logits[wrong])
    return subject._replace(prompt=prompt, difference=difference), float(logits.softmax(0)[answer])


def _make(run: Run, subject: Subject, asked: GraphOptions, first: int) -> dict[str, Any]:
    """Returns the attributes of `Graph` that are about memories. `first`: position of the first token whose memories are patched."""
    everything = np.arange(subject.m.numel())
    (without,), _ = patch(subject, [everything])
    whole, note = subject.difference - without, ""

    def kept_by(sets: Sequence[np.ndarray]) -> np.ndarray:
        return (patch(subject, sets, but=True)[0] - without) / whole

    if whole <= 0:
        chosen = Chosen(everything[:0], np.nan, False)
        note = (
            f"The logit difference is {subject.difference:.3g}, and {without:.3g} when all memories are patched: together they do not"
            " raise it, so there is nothing to keep."
        )
    else:
        chosen = choose(subject, asked.share, asked.maximum, kept_by)
        if not len(chosen.members):
            note = "No set that was tried keeps more of the logit difference than none."
    places = chosen.members
    generator = random_stream(run.settings.seed, Purpose.RANDOM_PLACES)
    moves, offset = (subject.m != subject.base).numpy(), np.asarray(run.anatomy.layer_offset)
    drawn = [random_members(places, moves, offset, generator) for _ in range(asked.random_sets)]
    choices = [("graph", 0, places), *(("random", n, own) for n, own in enumerate(drawn))]
    choices += [("none", 0, everything[:0]), ("all", 0, everything)]
    every = [own for _, _, own in choices]
    differences = patch(subject, every, but=True)[0]
    sets = pd.DataFrame(
        {
            "choice": [choice for choice, _, _ in choices],
            "draw": [draw for _, draw, _ in choices],
            "memories": [*map(len, every)],
            "difference": differences,
            "kept": (differences - without) / whole if whole > 0 else np.nan,
            "patched": patch(subject, every)[0],
        }
    )
    nodes, edges = _describe(run, subject, chosen, kept_by, first)
    return {
        "kept": chosen.kept,
        "reached": chosen.reached,
        "note": note,
        "nodes": nodes,
        "edges": largest_edges(edges, asked.edge_share),
        "sets": sets,
    }


def _describe(
    run: Run, subject: Subject, chosen: Chosen, kept_by: KeptBy, first: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns the nodes of `Graph`, and all edges between them."""
    memories, offset = subject.m.shape[1], np.asarray(run.anatomy.layer_offset)
    layer = subject.layer_of(chosen.members)
    order = np.lexsort([chosen.members, layer])
    places, layer = chosen.members[order], layer[order]
    memory, position = places % memories - offset[layer], first + places // memories
    alone = [places[n : n + 1] for n in range(len(places))]
    effects = subject.difference - patch(subject, alone)[0] if alone else np.zeros(0)
    edges = measure_edges(subject, places, effects)
    top = kept_tokens(run.files, "top")[0][places % memories, 0] if alone else []
    nodes = pd.DataFrame(
        {
            "name": [
                f"{memory_name(*each[:2])}@{each[2]}"
                for each in zip(layer.tolist(), memory.tolist(), position.tolist())
            ],
            "layer": layer,
            "memory": memory,
            "position": position,
            "coefficient": subject.m.ravel()[places].numpy(),
            "baseline": subject.base.ravel()[places].numpy(),
            "effect": effects,
            "loss": chosen.kept - kept_by([np.delete(places, n) for n in range(len(places))]) if alone else np.zeros(0),
            "passed_on": edges.groupby("source")["effect"].sum().reindex(range(len(places))).to_numpy(),
            "pattern": [run.memory(*each).pattern for each in zip(layer.tolist(), memory.tolist(), strict=True)],
            "top_token": [run.vocabulary[number] for number in top],
        }
    )
    return nodes, edges
