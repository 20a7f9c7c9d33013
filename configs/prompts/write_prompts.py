"""Writes the files of prompts beside this script, from lists of words: `python configs/prompts/write_prompts.py`.

agreement.jsonl: the verb of a sentence agrees with its subject, also behind a noun of the other number. capitals.jsonl: the
capital of a country. documentation.jsonl: agreement with words of Python's documentation, for
the embedded model.
"""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

NOUNS = [
    ("author", "authors"),
    ("pilot", "pilots"),
    ("teacher", "teachers"),
    ("farmer", "farmers"),
    ("manager", "managers"),
    ("customer", "customers"),
    ("officer", "officers"),
    ("parent", "parents"),
    ("dog", "dogs"),
    ("king", "kings"),
    ("doctor", "doctors"),
    ("student", "students"),
]
OTHERS = [
    ("car", "cars"),
    ("house", "houses"),
    ("tree", "trees"),
    ("table", "tables"),
    ("river", "rivers"),
    ("book", "books"),
    ("door", "doors"),
    ("wall", "walls"),
]
VERBS = [(" is", " are"), (" was", " were"), (" has", " have")]
CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Russia": "Moscow",
    "Japan": "Tokyo",
    "Greece": "Athens",
    "Egypt": "Cairo",
    "Austria": "Vienna",
    "Ireland": "Dublin",
    "Portugal": "Lisbon",
    "Poland": "Warsaw",
    "Norway": "Oslo",
    "Cuba": "Havana",
    "Turkey": "Ankara",
    "Sweden": "Stockholm",
    "Canada": "Ottawa",
    "England": "London",
}
FRAMES = {
    "capital of": "The capital of {country} is the city of",
    "city of": "The main city and capital of {country} is called",
    "government": "The government of {country} meets in its capital city,",
}
FUNCTIONS = ["list", "string", "file", "module", "function", "value", "object", "method"]


def agreement() -> Iterator[dict]:
    """Yields pairs that differ in the number of the subject: plural is clean, so that contrasts of pairs add up."""
    for (subject, other), verb, plain in itertools.product(itertools.product(NOUNS, OTHERS), VERBS, ("near", "behind")):
        for attractor, noun in (("singular", other[0]), ("plural", other[1])):
            yield {
                "clean_prefix": f"The {subject[1]} {plain} the {noun}",
                "patch_prefix": f"The {subject[0]} {plain} the {noun}",
                "clean_answer": verb[1],
                "patch_answer": verb[0],
                "label": f"{verb[1].strip()}, behind a {attractor}",
            }


def capitals() -> Iterator[dict]:
    """Yields pairs that differ in the country."""
    for (label, frame), (one, other) in itertools.product(FRAMES.items(), itertools.permutations(CAPITALS, 2)):
        yield {
            "clean_prefix": frame.format(country=one),
            "patch_prefix": frame.format(country=other),
            "clean_answer": f" {CAPITALS[one]}",
            "patch_answer": f" {CAPITALS[other]}",
            "label": label,
        }


def documentation() -> Iterator[dict]:
    """Yields pairs that differ in number, of words of Python's documentation: plural is clean."""
    for name in FUNCTIONS:
        for before in ("This", "Every such", "The first", "If the", "When a"):
            yield {
                "clean_prefix": f"{before.replace('This', 'These').replace('Every such', 'All such')} {name}s",
                "patch_prefix": f"{before} {name}",
                "clean_answer": " are",
                "patch_answer": " is",
                "label": before,
            }


def main() -> None:
    """Writes the files. Of many prompts, 400 are drawn."""
    for name, prompts in (("agreement", agreement()), ("capitals", capitals()), ("documentation", documentation())):
        rows = [*prompts]
        chosen = sorted(random.Random(0).sample(range(len(rows)), min(400, len(rows))))
        path = Path(__file__).parent / f"{name}.jsonl"
        path.write_text("".join(json.dumps(rows[n]) + "\n" for n in chosen))


if __name__ == "__main__":
    main()
