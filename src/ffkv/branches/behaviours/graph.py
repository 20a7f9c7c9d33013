"""The graph of a behaviour: few memories that keep a share of it, what is between them, and how stable both are over prompts.

One half of the prompts chooses the memories. All numbers are of the other half.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from ffkv.base.process.progress import progress
from ffkv.base.settings import Behaviour
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.behaviours.encode import Encoded
from ffkv.branches.behaviours.smallest import Chosen, choose, fewest, random_members
from ffkv.branches.behaviours.stability import jaccard
from ffkv.branches.behaviours.subject import Subject, patch, read_subject, screens
from ffkv.branches.behaviours.words import ALL, GRAPH, NONE, RANDOM, RESAMPLED
from ffkv.model.effects.edges import edges
from ffkv.model.effects.running import Running

ANSWER = -1  # stands for the answer among the targets of edges
DRAWS = 1000  # times that prompts are drawn again, for intervals and for the stability of edges
PATHS = ("held", "direct", "total", "total_m")


class Half:
    """Prompts on which sets of memories are patched. No run is made twice."""

    def __init__(self, subjects: Sequence[Subject]):
        self.subjects = subjects
        self.all = np.arange(subjects[0].m.shape[1])  # numbers of all memories
        self.whole = np.array([subject.difference for subject in subjects])  # logit differences [prompt]
        self.known: list[dict[tuple[bool, bytes], float]] = [{} for _ in subjects]
        self.without = self.differences([np.zeros(0, np.int64)])[:, 0]  # when all memories are patched [prompt]

    def differences(self, sets: Sequence[np.ndarray], but: bool = True, used: np.ndarray | None = None) -> np.ndarray:
        """Returns the logit difference when all memories but those of each set are patched; or, without `but`, when those are.

        Args:
            sets: numbers of memories [set][memory].
            used: the prompts to run; by default all [prompt].
        Returns:
            [prompt, set]; NaN for prompts that are not used.
        """
        keys = [(but, np.sort(own).tobytes()) for own in sets]
        found = np.full((len(self.subjects), len(sets)), np.nan)
        for n in [*range(len(found))] if used is None else np.flatnonzero(used).tolist():
            known, subject = self.known[n], self.subjects[n]
            missing = {key: _everywhere(subject, own) for key, own in zip(keys, sets, strict=True) if key not in known}
            if missing:
                known |= zip(missing, patch(subject, [*missing.values()], but)[0].tolist(), strict=True)
            found[n] = [known[key] for key in keys]
        return found


def _everywhere(subject: Subject, memories: np.ndarray) -> np.ndarray:
    """Returns the places of memories at all tokens that are patched, token by token."""
    tokens, width = subject.m.shape
    return (np.arange(tokens)[:, None] * width + memories).ravel()


def read_half(running: Running, prompts: Sequence[Encoded], mean: np.ndarray, baseline: str) -> Half:
    """Reads prompts. Arguments: as in `read_subject`."""
    how = mean, baseline, running.batch_tokens, running.keeps
    return Half([read_subject(running.loaded, running.head, each, *how) for each in prompts])


def read_rises(half: Half) -> np.ndarray:
    """Returns the screens of each prompt on the way from all patched to none, summed over tokens [step, prompt, memory]."""
    of_prompts = [[own.reshape(subject.m.shape).sum(0) for own in screens(subject)] for subject in half.subjects]
    return np.array(of_prompts, np.float32).swapaxes(0, 1)


def choose_graph(half: Half, rises: np.ndarray, weights: np.ndarray, share: float, maximum: int) -> Chosen:
    """Finds few memories that keep a share of the mean logit difference when all others are patched.

    Args:
        rises: see `read_rises`.
        weights: how many times each prompt counts [prompt].
        share, maximum: as in `smallest.choose`.
    Returns:
        The memories. None, and NaN as what they keep, if memories together do not raise the logit difference.
    """
    used = weights > 0
    shares = weights[used] / weights.sum()
    whole = shares @ (half.whole - half.without)[used]
    if whole <= 0:
        return Chosen(np.zeros(0, np.int64), np.nan, False)

    def kept_by(sets: Sequence[np.ndarray]) -> np.ndarray:
        return shares @ (half.differences(sets, used=used) - half.without[:, None])[used] / whole

    def effects_of(members: np.ndarray) -> np.ndarray:
        return shares @ (half.whole[:, None] - half.differences([*members[:, None]], False, used))[used]

    return choose([shares @ of_step[used] for of_step in rises], effects_of, kept_by, share, maximum)


class Links(NamedTuple):
    """What each memory of a graph does to the others on prompts while these keep their coefficients, summed over tokens."""

    change: np.ndarray  # by how much the coefficient of the target falls [prompt, source, target]
    along: np.ndarray  # the same, times by how much the target falls if it is patched itself [prompt, source, target]
    square: np.ndarray  # the square of the latter [prompt, target]
    answer: np.ndarray  # by how much the logit difference falls [prompt, source]


def measure_links(half: Half, memories: np.ndarray) -> Links:
    """Patches each memory of a graph on each prompt while all others keep the coefficients that they have without changes."""
    of_prompts = []
    for subject in half.subjects:
        alone = [_everywhere(subject, own) for own in memories[:, None]]
        differences, seen = patch(subject, alone, hold=_everywhere(subject, memories))
        own, base = (of_all[:, memories].double().numpy() for of_all in (subject.m, subject.base))
        change, falls = own - seen.reshape(len(memories), *own.shape), own - base
        along = (change * falls).sum(1)
        of_prompts.append((change.sum(1), along, (falls**2).sum(0), subject.difference - differences))
    return Links(*(np.stack(parts) for parts in zip(*of_prompts, strict=True)))


def make_graph(
    running: Running, choosing: Half, telling: Half, settings: Behaviour, seed: int, name: str
) -> dict[str, pd.DataFrame]:
    """Returns the tables `GRAPH_SETS`, `GRAPH_NODES`, `GRAPH_EDGES` and `GRAPH_PATHS`, without the behaviour, by their names. Those
    without rows are left out.

    Args:
        choosing: the prompts that choose the memories.
        telling: the prompts on which all numbers are measured.
        name: of the behaviour, for the progress.
    """
    graphs = _choose_again(choosing, settings, seed, name)
    memories, offset = graphs[0].members, np.asarray(running.loaded.anatomy.layer_offset)
    prompts = len(telling.subjects)
    drawn = random_stream(seed, Purpose.GRAPH_BOOTSTRAP, 1).multinomial(prompts, np.full(prompts, 1 / prompts), DRAWS)
    weights = np.concatenate([np.ones((1, prompts)), drawn]) / prompts  # the prompts themselves, and drawn again
    whole = weights @ (telling.whole - telling.without)
    whole = whole if whole[0] > 0 else np.full_like(whole, np.nan)
    moves = np.any([(subject.m != subject.base).any(0).numpy() for subject in telling.subjects], axis=0)
    generator = random_stream(seed, Purpose.GRAPH_SETS)
    random = [random_members(memories, moves[None], offset, generator) for _ in range(settings.random_sets)]
    made = {"graph_sets": _sets(telling, graphs, random, weights, whole)}
    if len(memories):
        nodes = _nodes(telling, memories, offset, weights, whole)
        between = _edges(measure_links(telling, memories), nodes, telling, memories, weights, settings.graph_share)
        nodes["stability"] = [np.mean([memory in own.members for own in graphs[1:]]) for memory in memories]
        nodes["passed_on"] = between.groupby("source")["effect"].sum().reindex(range(len(nodes))).to_numpy()
        paths = measure_paths(running, telling, nodes)
        made |= {"graph_nodes": nodes, "graph_edges": between, "graph_paths": paths}
    return made


def _choose_again(half: Half, settings: Behaviour, seed: int, name: str) -> list[Chosen]:
    """Returns the graph of the prompts, and those of prompts that are drawn again with replacement."""
    count, rises = len(half.subjects), read_rises(half)
    generator = random_stream(seed, Purpose.GRAPH_BOOTSTRAP, 0)
    drawn = generator.multinomial(count, np.full(count, 1 / count), settings.graph_resamples)
    graphs = []
    with progress(1 + len(drawn), "graphs", name) as bar:
        for weights in [np.ones(count), *drawn]:
            graphs.append(choose_graph(half, rises, weights, settings.graph_share, settings.graph_maximum))
            bar.update(1)
    return graphs


def _sets(
    half: Half, graphs: Sequence[Chosen], random: Sequence[np.ndarray], weights: np.ndarray, whole: np.ndarray
) -> pd.DataFrame:
    """Returns what sets keep on other prompts than those that chose them. `whole`: what there is to keep [draw]."""
    memories = graphs[0].members
    others = [(NONE, memories[:0]), (ALL, half.all), *((RANDOM, own) for own in random)]
    choices = [(GRAPH, graphs[0]), *((RESAMPLED, own) for own in graphs[1:])]
    choices += [(choice, Chosen(own, np.nan, False)) for choice, own in others]
    sets = pd.DataFrame({"choice": [choice for choice, _ in choices]})
    sets["draw"] = sets.groupby("choice").cumcount()
    every = [own.members for _, own in choices]
    sets["memories"] = [*map(len, every)]
    sets["jaccard"] = [jaccard(own, memories) for own in every]
    sets["chosen"] = [own.kept for _, own in choices]
    sets["reached"] = [own.reached for _, own in choices]
    kept = half.differences(every)
    sets["prompts"], sets["difference"] = len(half.subjects), kept.mean(0)
    _estimate(sets, "kept", weights @ (kept - half.without[:, None]) / whole[:, None])
    sets["patched"] = half.differences(every, but=False).mean(0)
    return sets


def _estimate(table: pd.DataFrame, name: str, values: np.ndarray) -> None:
    """Puts a number into a table, with its interval. `values`: of the prompts, and of those that are drawn again [draw, row]."""
    table[name] = values[0]
    low, high = ("low", "high") if name in ("kept", "effect") else (f"{name}_low", f"{name}_high")
    table[low], table[high] = np.quantile(values[1:], [0.025, 0.975], axis=0)


def _nodes(
    half: Half, memories: np.ndarray, offset: np.ndarray, weights: np.ndarray, whole: np.ndarray
) -> pd.DataFrame:
    layer = np.searchsorted(offset, memories, "right") - 1
    nodes = pd.DataFrame({"layer": layer, "memory": memories - offset[layer]})
    _estimate(nodes, "effect", weights @ _effects(half, memories))
    rest = half.differences([np.delete(memories, n) for n in range(len(memories))])
    _estimate(nodes, "loss", weights @ (half.differences([memories]) - rest) / whole[:, None])
    return nodes


def _effects(half: Half, memories: np.ndarray) -> np.ndarray:
    """Returns by how much the logit difference falls when each memory is patched [prompt, memory]."""
    return half.whole[:, None] - half.differences([*memories[:, None]], but=False)


def _edges(
    links: Links, nodes: pd.DataFrame, half: Half, memories: np.ndarray, weights: np.ndarray, share: float
) -> pd.DataFrame:
    """Returns all edges, the largest effect first."""
    source, target = np.nonzero(nodes["layer"].to_numpy()[:, None] < nodes["layer"].to_numpy())
    square = weights @ links.square[:, target]
    along = weights @ links.along[:, source, target]
    shares = np.divide(along, square, out=np.zeros_like(along), where=square > 0)
    to_answer = weights @ links.answer
    effects = np.concatenate([shares * (weights @ _effects(half, memories))[:, target], to_answer], axis=1)
    number = np.arange(len(memories))
    table = pd.DataFrame(
        {
            "source": np.concatenate([source, number]),
            "target": np.concatenate([target, np.full_like(number, ANSWER)]),
            "change": np.concatenate([links.change.mean(0)[source, target], to_answer[0]]),
            "share": np.concatenate([shares[0], np.full(len(number), np.nan)]),
        }
    )
    _estimate(table, "effect", effects)
    largest = np.zeros((len(effects), len(table)), bool)
    for row, own in zip(largest, np.abs(effects), strict=True):
        row[fewest(own, share)] = True
    table["shown"], table["stability"] = largest[0], largest[1:].mean(0)
    return table.sort_values("effect", key=np.abs, ascending=False, kind="stable", ignore_index=True)


def measure_paths(running: Running, half: Half, nodes: pd.DataFrame) -> pd.DataFrame:
    """Returns the table `GRAPH_PATHS`: edges at the last token of the prompts, see `ffkv.model.effects.edges`, as means."""
    if nodes["layer"].nunique() < 2:
        return pd.DataFrame()
    found = []
    for subject in half.subjects:
        ids = torch.tensor(subject.prompt.clean)[None].to(running.loaded.device)
        places = nodes[["layer", "memory"]].assign(position=ids.shape[1] - 1)
        found.append(edges(running.loaded, ids, places, places, batch_tokens=running.batch_tokens).edges)
    by_edge = pd.concat(found).groupby(["source", "target", "factor"], sort=False)[[*PATHS]]
    return by_edge.mean().reset_index()
