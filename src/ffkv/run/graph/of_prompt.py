"""The graph of a prediction: what a prompt says is asked of the model, and the graph is put together."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
import torch

from ffkv.activations.trigger_file import read_triggers
from ffkv.base.errors import UserError
from ffkv.base.settings import documents, section
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.behaviours.choosing import GROWTH, Chosen, Subjects, choose_graphs, highest
from ffkv.branches.behaviours.graph import describe_graph
from ffkv.branches.behaviours.stored import Encoded
from ffkv.branches.behaviours.subjects import Subject, read_prompts
from ffkv.branches.behaviours.words import ALL, GRAPH, NONE, RANDOM
from ffkv.model.effects.rerun import TOLERANCE, Running
from ffkv.model.effects.writes import ERROR, Writes, norms_before, patched_writes, run_writes, writers_of
from ffkv.model.placement import running_in_float32
from ffkv.model.tap.hooks import relative_error, tried
from ffkv.run.graph.result import NOTHING, Graph, named
from ffkv.run.results.run import Run
from ffkv.run.results.tokens import find_token
from ffkv.run.trace.prompt import check_prompt, read_prompt
from ffkv.run.trace.settings import GraphOptions

# The columns of `Graph`.
NODES = (
    *("name", "layer", "memory", "position", "coefficient", "baseline", "effect"),
    *("loss", "passed_on", "pattern", "pushes"),
)
EDGES = ("source", "target", "change", "effect")
SETS = ("choice", "draw", "memories", "difference", "kept", "patched")
FIRST = 2  # how many places a set that grows gets at a time at least


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
    check_prompt(run, text)
    asked = section(GraphOptions, **options)
    named = {"answer": asked.answer, "wrong": asked.wrong}
    given = {name: find_token(run.files, token) for name, token in named.items() if token is not None}
    model = run.model(device)
    prompt = read_prompt(run, model.tokenizer, text)
    first = len(run.corpus("train").bos)
    if len(prompt.ids) == first:
        raise UserError("The prompt is empty, so no memory acts at a token of it. Write a prompt of one token or more.")
    other = None if asked.other is None else read_prompt(run, model.tokenizer, asked.other)
    if other is not None and len(other.ids) != len(prompt.ids):
        raise UserError(
            f"The prompt has {len(prompt.ids)} tokens, and the other one {len(other.ids)}. Their tokens are compared one by one, so"
            " write two prompts with the same number of tokens."
        )
    mean = read_triggers(run.folder / "triggers.h5", run.anatomy.identity).mean
    ids = prompt.ids[:0] if other is None else other.ids
    baseline = asked.baseline if other is None else "patch"
    encoded = Encoded(prompt.ids, ids, 0, 0, "", len(prompt.ids) - first)
    its = Running(model, model.head, False, (), model.batch_tokens)
    (subject,) = read_prompts(its, [encoded], mean, baseline)
    subject, probability = _with_answers(subject, **given)
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
        **_make(run, its, subject, asked, first),
    )


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


def _make(run: Run, its: Running, subject: Subject, asked: GraphOptions, first: int) -> dict[str, Any]:
    """Returns the attributes of `Graph` that are about memories, and errors of dictionaries. `first`: position of the first token whose memories are patched."""
    one, note = Subjects([subject], np.zeros(1), of_places=True), ""
    rises, how = one.rises(), (asked.share, asked.maximum)
    raised = one.whole[0] > one.without[0]
    grown = [_grow(one, rises[0, 0], *how)] if raised else []
    (chosen,) = choose_graphs(one, rises, np.ones((1, 1)), *how, grown)
    if not raised:
        note = "All memories together do not raise it, so there is nothing to keep."
    elif not len(chosen.members):
        note = NOTHING
    generator = random_stream(run.settings.seed, Purpose.RANDOM_PLACES)
    drawn = [(RANDOM, Chosen(one.draw_beside(chosen.members, generator))) for _ in range(asked.random_sets)]
    choices = [(GRAPH, chosen), *drawn, (NONE, Chosen(chosen.members[:0])), (ALL, Chosen(one.all))]
    sets, nodes, edges = describe_graph(one, choices, np.ones((1, 1)), asked.edge_share)
    nodes["position"] = first + one.at(chosen.members)[0]
    for name, coefficients in (("coefficient", subject.m), ("baseline", subject.base)):
        nodes[name] = coefficients.ravel()[chosen.members].numpy()
    with running_in_float32(its.loaded.model):
        errors = measure_errors(its, subject.prompt)
    errors.insert(0, "name", [f"L{row.layer}.error@{row.position}" for row in errors.itertuples()])
    return {
        "kept": chosen.kept,
        "reached": chosen.reached,
        "note": note,
        "nodes": named(run, nodes)[[*NODES]],
        "errors": errors,
        "edges": edges.loc[edges["shown"], [*EDGES]].reset_index(drop=True),
        "sets": sets[[*SETS]],
    }


def measure_errors(running: Running, prompt: Encoded) -> pd.DataFrame:
    """Returns by how much the logit difference falls if what a dictionary leaves of y is patched at one token, and nothing else.

    It becomes what it is on the other prompt of a pair; else 0. The model computes in float32. Columns: layer, position (of a token that
    is patched), effect (NaN if what is written cannot be told apart), the largest first. No rows if dictionaries leave nothing.
    """
    loaded, count, writers = running.loaded, len(prompt.clean), writers_of(running.loaded.anatomy)
    errors = [n for n, (_, what) in enumerate(writers) if what == ERROR]
    places = [*itertools.product(errors, range(count - prompt.tokens, count))]
    found = pd.DataFrame(places, columns=["writer", "position"], dtype=int).assign(effect=np.nan)
    texts = [torch.tensor(own)[None].to(loaded.device) for own in (prompt.clean, prompt.patch) if errors]
    norms = tried(norms_before, loaded, texts[0]) if errors else ""
    if isinstance(norms, list):
        clean = run_writes(loaded, norms, texts[0])
        nothing = Writes({writer: torch.zeros_like(own) for writer, own in clean.noted.items()}, clean.end)
        to = run_writes(loaded, norms, texts[1]) if len(prompt.patch) else nothing
        for position, own in found.groupby("position"):
            patched = np.arange(len(clean.parts)) == np.append(own["writer"], -1)[:, None]  # nothing in the last copy
            at, copies = slice(position, position + 1), torch.from_numpy(patched).to(loaded.device)
            ends = patched_writes(loaded, norms, texts[0], to, at, copies, running.batch_tokens)[:, -1]
            if relative_error(ends[-1], clean.end[0, -1]) < TOLERANCE:
                pair = torch.tensor([[prompt.answer, prompt.wrong]]).expand(len(ends), -1)
                differences = running.head.differences(ends, pair, loaded.anatomy.read_as).double().cpu()
                found.loc[own.index, "effect"] = (differences[-1] - differences[:-1]).numpy()
    found.insert(0, "layer", [writers[n][0] for n in found.pop("writer")])
    return found.sort_values("effect", key=np.abs, ascending=False, kind="stable", ignore_index=True)


def _grow(one: Subjects, rises: np.ndarray, share: float, maximum: int) -> Chosen:
    """Takes the places with the largest screen while all others are patched, and screens again each time.

    `rises`: the screen while all are patched [place].
    """
    best = Chosen(np.zeros(0, np.int64), 0.0)
    places, whole = best.members, one.whole[0] - one.without[0]
    while not best.reached and len(places) < maximum:
        more = highest(rises, min(max(FIRST, int(GROWTH * len(places))), maximum - len(places)))
        if not len(more):
            break
        places = np.concatenate([places, more])
        ((rises,),) = one.screen([np.isin(one.all, places).astype(np.float32)])
        rises[places] = 0
        kept = float(one.differences([places])[0, 0] - one.without[0]) / whole
        best = Chosen(places, kept, kept >= share) if kept > best.kept else best
    return best
