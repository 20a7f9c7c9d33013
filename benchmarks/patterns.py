"""`python -m benchmarks.patterns`: how often the test of `ffkv keys` finds a topic that was planted, and one that is not there.

A planted key has 25 prefixes, some of which are about one article. The others are random. Real keys are not needed, and no
model. A prefix such as "In the" is about nothing, wherever it is from: so a prefix that is about an article has some content
words. Lines without this condition are measured too.
"""

import functools
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np
import pandas as pd

from benchmarks.planted_keys import PREFIXES, Planter, make_corpus, make_material
from ffkv.branches.keys.key_sample import random_examples
from ffkv.branches.keys.patterns import Detector, detect_patterns, prepare_detector
from ffkv.branches.keys.topics import place_prefixes, topic_p_values
from ffkv.branches.settings import Keys
from ffkv.corpus.competing import CompetingPrefixes

PLANTED = (3, 5, 8, 12, 25)
LEVELS = (0.01, 0.05, 0.1, 0.5)
CONTENT_WORDS = (3, 0)  # minimum of different ones in each prefix that is planted


def study(
    name: str, competing: CompetingPrefixes, detector: Detector, layers: int, planted: int, per_layer: int, seed: int
) -> Iterator[dict]:
    """Tests layers that hold planted keys among random ones, as `ffkv keys` tests a layer.

    Args:
        name: name of the corpus.
        competing: its prefixes.
        detector: see `prepare_detector`.
        layers: number of layers per line of the table.
        planted: number of planted keys per layer.
        per_layer: number of keys per layer. Those that are not planted ("other keys") are random, apart from their last word if
            that is the same. As many keys of random prefixes stand beside them, as in a run.
        seed: seed of the random numbers.
    """
    material = make_material(competing, seed=seed)
    for number, (content, same_word) in enumerate(itertools.product(CONTENT_WORDS, (False, True))):
        planter = Planter(material, content)
        for count in PLANTED:
            found, alike, false, random, members = 0, 0, 0, 0, []
            for layer in range(layers):
                generator = np.random.default_rng([seed, 2, same_word, count, layer])
                keys: list[Sequence] = [planter.plant(count, same_word, generator) for _ in range(planted)]
                keys += [planter.control(same_word, generator) for _ in range(per_layer - planted)]
                controls = random_examples(competing, per_layer, PREFIXES, seed + 1000 * count + 100 * number, layer)
                keys += [example.prefixes for example in controls]
                patterns = detect_patterns(keys, detector)
                topics = [[each for each in of_key if each.family == "semantic"] for of_key in patterns]
                found += sum(map(bool, topics[:planted]))
                alike += sum(map(bool, topics[planted:per_layer]))
                false += sum(map(bool, topics[per_layer:]))
                random += len(controls)
                members += [len({*pattern.members}) for each in topics[:planted] for pattern in each]
            total = layers * planted
            yield {
                "corpus": name, "content words": content, "last word": "same" if same_word else "any", "of one article": count, "keys": total,
                "power": found / total, "other keys": layers * (per_layer - planted), "topics of other keys": alike,
                "random keys": random, "false findings": false,
                "prefixes per topic": float(np.mean(members)) if members else float("nan"),
            }  # fmt: skip


def study_second_topics(
    competing: CompetingPrefixes, detector: Detector, layers: int, planted: int, per_layer: int, seed: int
) -> Iterator[dict]:
    """How many keys have a topic, and how many a second one: of two articles, and of one. Arguments: see `study`."""
    planter = Planter(make_material(competing, seed=seed), CONTENT_WORDS[0])
    for number, (articles, count) in enumerate(((2, 8), (1, 12))):
        topics = []
        for layer in range(layers):
            generator = np.random.default_rng([seed, 3, number, layer])
            plant = planter.plant_two if articles == 2 else functools.partial(planter.plant, same_word=False)
            keys: list[Sequence] = [plant(count, generator=generator) for _ in range(planted)]
            keys += [planter.control(False, generator) for _ in range(per_layer - planted)]
            controls = random_examples(competing, per_layer, PREFIXES, seed + 10_000 + 100 * number, layer)
            keys += [example.prefixes for example in controls]
            topics += [
                sum(pattern.family == "semantic" for pattern in of_key)
                for of_key in detect_patterns(keys, detector)[:planted]
            ]
        shares = {
            name: float(np.mean(np.array(topics) >= least)) for least, name in ((1, "a topic"), (2, "a second one"))
        }
        yield {"articles": articles, "prefixes of each": count, "keys": len(topics), **shares}


def random_p_values(competing: CompetingPrefixes, detector: Detector, keys: int, seed: int) -> Iterator[dict]:
    """How often the p-values of random keys are small: of all prefixes, of few, of short ones and of long ones."""
    for name, drawn, choose in (
        ("25 prefixes", 25, lambda key: key),
        ("5 of the 25", 25, lambda key: key[:5]),
        ("the 20 shortest of 60", 60, lambda key: sorted(key, key=len)[:20]),
        ("the 20 longest of 60", 60, lambda key: sorted(key, key=len)[-20:]),
    ):
        random = [choose(example.prefixes) for example in random_examples(competing, keys, drawn, seed, layer=0)]
        placed = place_prefixes(random, [()] * keys, detector.pool)
        p = topic_p_values(placed, detector.pool, detector.minimum_prefixes, seed)
        yield {"random keys": name} | {f"p <= {level}": float(np.mean(p <= level)) for level in LEVELS}


def show(row: dict) -> None:
    """Prints a row."""
    cells = (f"{key}: {value:.3g}" if isinstance(value, float) else f"{key}: {value}" for key, value in row.items())
    click.echo(", ".join(cells))


@click.command()
@click.option(
    "--text",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A text file such as WikiText.  [default: the embedded corpus]",
)
@click.option("--layers", type=click.IntRange(1), default=5, show_default=True, help="Layers per line of the table.")
@click.option("--planted", type=click.IntRange(1), default=20, show_default=True, help="Planted keys per layer.")
@click.option("--per-layer", type=click.IntRange(1), default=100, show_default=True, help="Keys per layer.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random numbers.")
@click.option("--output", type=click.Path(path_type=Path), help="CSV file to write.")
def main(text: Path | None, layers: int, planted: int, per_layer: int, seed: int, output: Path | None) -> None:
    """Measures the power of the test for topics, and its false findings on random keys."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = make_corpus(text, Path(folder))
        competing = CompetingPrefixes(corpus, once=True)
        detector = prepare_detector(competing, Keys(), seed)
        rows = []
        for row in study(text.name if text else "embedded", competing, detector, layers, planted, per_layer, seed):
            rows.append(row)
            show(row)
        for row in study_second_topics(competing, detector, layers, planted, per_layer, seed):
            show(row)
        for row in random_p_values(competing, detector, 1000, seed):
            show(row)
    if output:
        pd.DataFrame(rows).to_csv(output, index=False)


if __name__ == "__main__":
    main()
