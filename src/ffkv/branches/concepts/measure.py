"""Reads the texts of the tasks of a concept, and measures how well memories, and other features, separate their labels."""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import pandas as pd
import torch
from threadpoolctl import threadpool_limits

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.intervals import drawn_again
from ffkv.base.process.progress import progress
from ffkv.base.process.workers import in_order
from ffkv.base.streams import Purpose, random_stream
from ffkv.base.terminal import say
from ffkv.branches.concepts.activations import group_tasks, read_tasks
from ffkv.branches.concepts.branch import TOGETHER
from ffkv.branches.concepts.draw import Task, draw
from ffkv.branches.concepts.labels import Unusable, read_labels, task_files
from ffkv.branches.concepts.null import Best, best_of_layer, p_value, shuffle
from ffkv.branches.concepts.probe import area, rank, score
from ffkv.branches.concepts.rules import shares_of_examples, tasks_of_rules
from ffkv.branches.concepts.settings import Concept
from ffkv.branches.concepts.tables import BEST, BY_LAYER, BY_TASK, MEMORIES, SHOWN
from ffkv.branches.given import Given
from ffkv.corpus.encode import behind, replace_surrogates, tokenize
from ffkv.corpus.rules import Rule, find_rules

EMPTY = {"positive": "", "tokens": np.nan, "length_auc": np.nan, "examples": np.nan}
EMPTY |= dict.fromkeys(("train", "test", "positives", "documents"), 0)  # of a task without texts


def measure_concept(given: Given, settings: Concept, seed: int = 0) -> tuple[pd.DataFrame, ...]:
    """Measures the tasks of a concept, one after the other. Returns the tables `BY_TASK`, `BY_LAYER`, `BEST` and `MEMORIES`.

    Raises:
        UserError: the only file is missing, malformed, or has not two labels; no task has enough texts; or states are not finite.
    """
    rules = find_rules(settings.rules, settings.pipeline) if settings.rules else {}
    tasks = [*_tasks(given, settings, rules, seed)]
    if problems := [f"{name}: {why}" for name, why in tasks if isinstance(why, str)]:
        if len(problems) == len(tasks):
            raise UserError(f"The concept {given.name} has no task. " + " ".join(problems[:5]))
        measured = f"{len(tasks) - len(problems)} of {len(tasks)} tasks are measured."
        say("\n  ".join([f"{measured} Left out:", *problems]), error=True)
    loaded, processes, offset = given.model(), torch.get_num_threads(), given.anatomy.layer_offset
    groups = group_tasks([task for _, task in tasks if isinstance(task, Task)], TOGETHER * settings.texts)
    states = (each for group in groups for each in read_tasks(loaded, group))
    made: list[list[dict]] = [[], [], [], []]
    with progress(len(tasks), "tasks", given.name) as bar:
        for name, task in tasks:
            row = {"concept": given.name, "task": f"{given.name}/{name}" if name else given.name}
            if isinstance(task, str):
                made[0].append({**row, **EMPTY, "left_out": task})
            else:
                found = measure_task(task, *next(states), settings, seed, processes)
                of_rule = (given.train, given.triggers, rules[name]) if rules else None
                shares = shares_of_examples(*of_rule) if of_rule else np.full(offset[-1], np.nan)
                memories = [each | {"examples": shares[offset[each["layer"]] + each["memory"]]} for each in found[2]]
                of_task = [describe(task) | {"examples": pd.Series(shares).mean()}]
                for rows, own in zip(made, (of_task, *found[:2], memories), strict=True):
                    rows += [row | each for each in own]
            bar.update()
    described = (BY_TASK, BY_LAYER, BEST, MEMORIES)
    return tuple(tables.frame(table, rows, given.identity) for table, rows in zip(described, made, strict=True))


def _tasks(given: Given, settings: Concept, rules: dict[str, Rule], seed: int) -> Iterator[tuple[str, Task | str]]:
    """Yields the name of each task, and the task; or why a task of several has no texts."""
    from ffkv.model.checkpoint.tokenizer import load_tokenizer

    anatomy, beginning = given.anatomy, given.train.bos
    longest = min(settings.longest, anatomy.context - len(beginning))
    if rules:
        generator = random_stream(seed, Purpose.CONCEPT_TEXTS)
        yield from tasks_of_rules(given.train, rules, settings.texts, longest, generator)
        return
    tokenizer = load_tokenizer(given.files["model"], trust_remote_code=anatomy.trust_remote_code)
    files = task_files(settings.labels)
    for name, path in files.items():
        try:
            labelled = read_labels(path, settings)
            signs, documents = np.array(labelled.positive, bool), np.array(labelled.document, int)
            halves = None if labelled.train is None else np.array(labelled.train, bool)
            generator = random_stream(seed, Purpose.CONCEPT_TEXTS)
            try:
                drawn, train = draw(signs, documents, halves, settings.texts, generator)
            except UserError as error:
                raise Unusable(f"{path} has {error}") from error
        except Unusable as error:
            if len(files) == 1:
                raise
            yield name, str(error)
            continue
        texts = [replace_surrogates(labelled.texts[number]) for number in drawn.tolist()]
        ids = [each[-longest:] for each, *_ in tokenize(texts, tokenizer, list(beginning))]
        rows = [behind(beginning, each) for each in ids]
        if unknown := sum(not len(each) or int(each.max()) >= anatomy.vocabulary for each in ids):
            raise UserError(f"{path}: {unknown} texts have no token that the model knows. Leave them out.")
        length = np.array([len(each) for each in ids])
        counted = np.ones_like(length) if settings.value == "last" else length
        told = replace_surrogates(labelled.label), replace_surrogates(labelled.left_out)
        yield name, Task(name, told[0], rows, counted, signs[drawn], documents[drawn], train, length, told[1])


def measure_task(
    task: Task, m: Sequence[np.ndarray], r: Sequence[np.ndarray], settings: Concept, seed: int, processes: int = 1
) -> tuple[list[dict], list[dict], list[dict]]:
    """Measures a task from m [layer][text, memory] and r [layer][text, d].

    Returns the rows of `BY_LAYER`, `BEST` and `MEMORIES`, without the task.
    """
    positive, train = task.positive, task.train
    shuffled = shuffle(task, settings.shuffles, random_stream(seed, Purpose.SHUFFLED_CONCEPTS))
    weights = drawn_again(task.document[~train], settings.draws, random_stream(seed, Purpose.CONCEPT_DRAWS))

    def scored(x: np.ndarray) -> dict:
        return score(x.astype(np.float64), task, weights, settings.regularization, seed)._asdict()

    def measure_layer(layer: int) -> tuple[list[dict], dict[tuple[str, str], Best], list[dict]]:
        by_layer, best, memories = list[dict](), dict[tuple[str, str], Best](), list[dict]()
        directions = random_directions(r[layer], m[layer].shape[1], seed, layer)
        with threadpool_limits(1):  # matrices are small: several threads wait for each other
            for features, x in {"memories": m[layer], "residual": r[layer], "directions": directions}.items():
                order, difference = rank(x[train], positive[train])
                row = {"layer": layer, "features": features}
                sizes = [size for size in settings.sizes if size <= x.shape[1]]
                by_layer += [{**row, "size": size, **scored(x[:, order[:size]])} for size in sizes]
                own = best_of_layer(x, positive, train, shuffled)
                best |= {(features, choice): each for choice, each in own.items()}
                if features == "memories":
                    memories = memory_rows(layer, order, difference, own["best"])
            whole = {"layer": layer, "features": "whole", "size": r[layer].shape[1], **scored(r[layer])}
        return [*by_layer, whole], best, memories

    found = [*in_order(measure_layer, range(len(m)), min(processes, len(m)), "measure layers")]
    by_layer, best, memories = zip(*found, strict=True)
    nulls = (best_rows(features, choice, [own[features, choice] for own in best]) for features, choice in best[0])
    return choose_layers([*chain(*by_layer)]), [*chain(*nulls)], [*chain(*memories)]


def describe(task: Task) -> dict[str, object]:
    """Returns what the table `BY_TASK` says of the texts of a task.

    The AUC of the length alone is that on the test half, in the direction that it has on the train half.
    """
    length = task.length.astype(float)
    of_train, of_test = (area(length[half], task.positive[half]) for half in (task.train, ~task.train))
    return {
        "positive": task.label,
        "train": int(task.train.sum()),
        "test": int((~task.train).sum()),
        "positives": int(task.positive.sum()),
        "documents": len(np.unique(task.document)),
        "tokens": float(task.length.mean()),
        "length_auc": 1 - of_test if of_train < 0.5 else of_test,
        "left_out": task.left_out,
    }


def memory_rows(layer: int, order: np.ndarray, difference: np.ndarray, best: Best) -> list[dict]:
    """Returns a row for each memory of a layer that is among the first `SHOWN` of the ranking, or that separates the labels alone.

    `order`, `difference`: see `rank`. It does so if its AUC, in either direction, is above what the layer's best memory has by chance.
    """
    place = np.argsort(order)
    alone = np.maximum(best.each, 1 - best.each) > best.chance
    return [
        {"layer": layer, "memory": one, "rank": place[one], "difference": difference[one]}
        | {"auc": best.each[one], "alone": alone[one]}
        for one in np.flatnonzero(alone | (place < SHOWN)).tolist()
    ]


def random_directions(r: np.ndarray, count: int, seed: int, layer: int) -> np.ndarray:
    """Returns the residuals r [text, d] along random directions [text, direction], the same for each task."""
    generator = random_stream(seed, Purpose.CONCEPT_DIRECTIONS, layer)
    return r @ generator.standard_normal((r.shape[1], count), np.float32)


def choose_layers(rows: list[dict]) -> list[dict]:
    """Marks, of each kind of features and each size, the layer that is best on the texts for choices of the train half."""
    kinds: dict[tuple[str, int], list[dict]] = {}
    for row in rows:
        kinds.setdefault((row["features"], row["size"]), []).append(row)
    for own in kinds.values():
        best = max(own, key=lambda row: np.nan_to_num(row["validation"]))
        for row in own:
            row["chosen"] = row is best
    return rows


def best_rows(features: str, choice: str, of_layers: Sequence[Best]) -> list[dict]:
    """Returns a row for the best feature of each layer, and one for the best of all layers, whose shuffles are the best of all, too."""
    highest = int(np.argmax([each.auc for each in of_layers]))
    shuffled, tries = np.max([each.shuffled for each in of_layers], axis=0), sum(each.tries for each in of_layers)
    overall = of_layers[highest]._replace(shuffled=shuffled, tries=tries)
    row = {"features": features, "choice": choice}
    return [
        row
        | {"layer": layer, "feature": best.feature, "in_layer": at, "tries": best.tries, "auc": best.auc}
        | {"shuffled": best.chance, "p": p_value(best.auc, best.shuffled)}
        for layer, at, best in [*((at, at, best) for at, best in enumerate(of_layers)), (-1, highest, overall)]
    ]
