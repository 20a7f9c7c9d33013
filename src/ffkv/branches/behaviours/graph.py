"""A graph: few members that keep a share of a logit difference when all others are patched, and what is between them.

It is made alike of one prompt and of a set of prompts: `choosing` finds the members, `describe_graph` measures what they, and other sets, keep, and what each does to the others and to the answer. Of a behaviour, one half of
the prompts chooses the memories, and all numbers are of the other half: the step `graph`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from ffkv.base.files import tables
from ffkv.base.intervals import drawn_again, is_above_0, put_estimate, without_each
from ffkv.base.process.progress import progress
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.behaviours import stored
from ffkv.branches.behaviours.choose import jaccard
from ffkv.branches.behaviours.choosing import Asked, Chosen, Subjects, but_one, choose_graphs
from ffkv.branches.behaviours.settings import Behaviour
from ffkv.branches.behaviours.stored import largest
from ffkv.branches.behaviours.subjects import Copy, patch, read_prompts
from ffkv.branches.behaviours.tables import GRAPHS
from ffkv.branches.behaviours.words import ALL, ANSWER, CHOOSE, ESTIMATE, GRAPH, NONE, RANDOM, RESAMPLED
from ffkv.branches.given import Given
from ffkv.model.effects.edges import MEASURED, edges
from ffkv.model.effects.rerun import Running

DRAWS = 1000  # times that groups of prompts are drawn again, for the stability of edges


def graph_behaviour(given: Given, settings: Behaviour, seed: int = 0) -> tuple[pd.DataFrame, ...]:
    """Makes the graph of a behaviour: one half of the prompts chooses its memories, the other half tells what they do.

    The model computes in float32. There is no graph if none was asked for, and where `measure_behaviour` measures nothing. Returns
    the tables `GRAPHS`.

    Raises:
        UserError: the model cannot be differentiated, or changed while it runs.
    """
    frame, mean = stored.used(given.table("encode", given.identity)), given.triggers.mean
    made: dict[str, pd.DataFrame] = {}
    accuracy = stored.accuracy_of(given.table("answers", given.identity))
    if settings.graph_prompts and accuracy >= settings.minimum_accuracy:
        halves = [stored.first(frame, part, settings.graph_prompts) for part in (CHOOSE, ESTIMATE)]
        with given.running(whole=settings.positions == "all", gradients=True) as its:
            choosing, telling = (
                Subjects(read_prompts(its, stored.encoded(half), mean, settings.baseline), half["group"].to_numpy(str))
                for half in halves
            )
            made = make_graph(its, choosing, telling, settings, seed, given.name)
    return tuple(
        tables.frame(each, made.get(each.name, pd.DataFrame()).assign(behaviour=given.name), given.train_identity)
        for each in GRAPHS
    )


def make_graph(
    running: Running, choosing: Subjects, telling: Subjects, settings: Behaviour, seed: int, name: str
) -> dict[str, pd.DataFrame]:
    """Returns the tables `GRAPHS`, without the behaviour, by their names.

    Args:
        choosing: the prompts that choose the memories.
        telling: the prompts on which all numbers are measured.
        name: of the behaviour, for the progress.
    """
    rises, stream = choosing.rises(), random_stream(seed, Purpose.GRAPH_BOOTSTRAP, 0)
    # Of all prompts, then of groups that are drawn again.
    draws = np.array([np.ones(len(choosing.group)), *drawn_again(choosing.group, settings.graph_resamples, stream)])
    with progress(len(draws), "graphs", name) as bar:
        how = settings.graph_share, settings.graph_maximum
        graphs = choose_graphs(choosing, rises, draws, *how, done=bar.update)
    memories, generator = graphs[0].members, random_stream(seed, Purpose.GRAPH_SETS)
    random = [(RANDOM, Chosen(telling.draw_beside(memories, generator))) for _ in range(settings.random_sets)]
    again = drawn_again(telling.group, DRAWS, random_stream(seed, Purpose.GRAPH_BOOTSTRAP, 1))
    choices = [(GRAPH, graphs[0]), *((RESAMPLED, own) for own in graphs[1:])]
    choices += [(NONE, Chosen(memories[:0])), (ALL, Chosen(telling.all)), *random]
    sets, nodes, between = describe_graph(telling, choices, again, settings.graph_share)
    nodes["stability"] = [np.mean([memory in own.members for own in graphs[1:]]) for memory in memories]
    moves = [(subject.m - subject.base)[:, memories].sum(0).numpy() for subject in telling.subjects]
    nodes["coefficient"] = np.mean(moves, axis=0, dtype=np.float64)
    paths, found = pd.DataFrame(), []  # at the last token of the prompts, as means
    for subject in telling.subjects if nodes["layer"].nunique() > 1 else ():
        ids = torch.tensor(subject.prompt.clean)[None].to(running.loaded.device)
        places = nodes[["layer", "memory"]].assign(position=ids.shape[1] - 1)
        found.append(edges(running.loaded, ids, places, places).edges)
    if found:
        paths = pd.concat(found).groupby(["source", "target", "factor"], sort=False)[[*MEASURED]].mean().reset_index()
    return {"graph_sets": sets, "graph_nodes": nodes, "graph_edges": between, "graph_paths": paths}


def fewest(sizes: np.ndarray, share: float) -> np.ndarray:
    """Returns the fewest numbers whose sizes are a share of all sizes together, the largest first."""
    order = largest(sizes, len(sizes))
    summed = sizes[order].cumsum()
    count = int(np.searchsorted(summed, share * summed[-1] * (1 - 1e-12))) + 1 if len(summed) and summed[-1] else 0
    return order[:count]


def describe_graph(
    half: Subjects, choices: Sequence[tuple[str, Chosen]], again: np.ndarray, share: float
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Returns what sets keep, and the nodes and all edges of the first one, in the columns of `GRAPHS` that are about prompts.

    Shares are of the mean logit difference above that when all memories are patched. They are NaN if it is not above that, or its
    interval has the 0.

    Args:
        choices: the graph, and other sets, with the words for what chose them.
        again: how many times each prompt counts when groups are drawn again [draw, prompt].
        share: of the sizes of all edges, that `shown` ones have.
    """
    named, chosen = zip(*choices)
    members, every = chosen[0].members, [own.members for own in chosen]
    half.run([Asked(every), Asked(every, but=False), Asked(members[:, None], but=False), Asked(but_one(members))])
    weights = without_each(half.group)
    whole = weights @ (half.whole - half.without)
    if not is_above_0(whole):
        whole = np.full_like(whole, np.nan)  # there is nothing of which something could be a share
    sets = pd.DataFrame([own._asdict() for own in chosen]).rename(columns={"kept": "chosen"})
    sets = sets.assign(choice=named, memories=[*map(len, every)], prompts=len(half.subjects))
    sets["draw"] = sets.groupby("choice").cumcount()
    sets["jaccard"] = [jaccard(own, members) for own in every]
    differences = half.differences(every)
    sets["difference"], sets["patched"] = differences.mean(0), half.differences(every, but=False).mean(0)
    put_estimate(sets, "kept", weights @ (differences - half.without[:, None]) / whole[:, None], plain=True)
    _, layer, memory = half.at(members)
    nodes = pd.DataFrame({"layer": layer, "memory": memory})
    put_estimate(nodes, "effect", weights @ half.effects(members), plain=True)
    put_estimate(nodes, "loss", weights @ half.losses(members) / whole[:, None])
    between = describe_edges(half, members, weights, again, share)
    nodes["passed_on"] = between.groupby("source")["effect"].sum().reindex(range(len(nodes))).to_numpy()
    return sets, nodes, between


class Links(NamedTuple):
    """What each member of a graph does to the others on prompts while these keep their coefficients, summed over tokens."""

    change: np.ndarray  # by how much the coefficient of the target falls [prompt, source, target]
    along: np.ndarray  # the same, times by how much the target falls if it is patched itself [prompt, source, target]
    square: np.ndarray  # the square of the latter [prompt, target]
    answer: np.ndarray  # by how much the logit difference falls [prompt, source]


def measure_links(half: Subjects, members: np.ndarray) -> Links:
    """Patches each member of a graph on each prompt while all others keep the coefficients that they have without changes."""
    found: dict[int, tuple[np.ndarray, ...]] = {}
    tokens = np.array([len(subject.m) for subject in half.subjects])
    for numbers in (np.flatnonzero(tokens == count).tolist() for count in np.unique(tokens)):
        subjects = [half.subjects[n] for n in numbers]
        copies = [Copy(half.places(subjects[0], own)) for own in members[:, None]]
        places = half.places(subjects[0], members)
        made = patch(subjects, [copies] * len(subjects), hold=places)
        for n, subject, (differences, seen) in zip(numbers, subjects, made, strict=True):
            own, base = (
                of_all.ravel()[places].double().numpy().reshape(-1, len(members))
                for of_all in (subject.m, subject.base)
            )
            change, falls = own - seen.reshape(len(members), *own.shape), own - base
            found[n] = change.sum(1), (change * falls).sum(1), (falls**2).sum(0), subject.difference - differences
    return Links(*(np.stack(parts) for parts in zip(*(found[n] for n in range(len(found))), strict=True)))


def describe_edges(
    half: Subjects, members: np.ndarray, weights: np.ndarray, again: np.ndarray, share: float
) -> pd.DataFrame:
    """Returns all edges of a graph, the largest effect first.

    Edges lead to later layers, at the same token or a later one. `shown` are the fewest whose sizes are a share of all. `weights`: of
    the means over prompts, the first row of all prompts [1 + group, prompt]. `again`: see `describe_graph`.
    """
    if not len(members):
        return pd.DataFrame({"source": [0], "target": 0, "change": 0.0, "effect": 0.0, "shown": True})[:0]
    token, layer, _ = half.at(members)
    source, target = np.nonzero((layer[:, None] < layer) & (token[:, None] <= token))
    links, alone = measure_links(half, members), half.effects(members)

    def effects_of(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the shares of edges between members, and the effects of all edges [weights, edge]."""
        square = weights @ links.square[:, target]
        along = weights @ links.along[:, source, target]
        shares = np.divide(along, square, out=np.zeros_like(along), where=square > 0)
        return shares, np.concatenate([shares * (weights @ alone)[:, target], weights @ links.answer], axis=1)

    shares, effects = effects_of(weights)
    number = np.arange(len(members))
    table = pd.DataFrame(
        {
            "source": np.concatenate([source, number]),
            "target": np.concatenate([target, np.full_like(number, ANSWER)]),
            "change": np.concatenate([links.change.mean(0)[source, target], effects[0, len(source) :]]),
            "share": np.concatenate([shares[0], np.full(len(number), np.nan)]),
        }
    )
    put_estimate(table, "effect", effects, plain=True)
    # The mean of draws of groups that differ in size has another number of prompts.
    every = [effects[0], *effects_of(again / again.sum(1, keepdims=True))[1]]
    chosen = np.zeros((len(every), len(table)), bool)  # of all prompts, then of each draw
    for row, own in zip(chosen, np.abs(every), strict=True):
        row[fewest(own, share)] = True
    table["shown"], table["stability"] = chosen[0], chosen[1:].mean(0)
    return table.sort_values("effect", key=np.abs, ascending=False, kind="stable", ignore_index=True)
