"""Writes the files of prompts beside this script, from lists of words: `python configs/prompts/write_prompts.py`.

agreement.jsonl: the verb of a sentence agrees with its subject, also behind a noun of the other number. capitals.jsonl: the
capital of a country, or of a part of one. documentation.jsonl: agreement with words of Python's documentation, for the embedded
model.

Lines of one `group` share their nouns or places, and no line of another group has any of them. So a group is the draw at random,
and not a line. Each pair is there in one direction, and no two lines have the same prefixes. No model chose the words: all that
was asked for is that SmolLM2 has one token for each noun in both numbers, each place and each capital, with a blank in front.
"""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

SUBJECTS = (
    "actor artist athlete author bird boy brother captain cat citizen client cow customer dancer daughter director doctor dog driver "
    "editor engineer farmer father friend girl governor guest historian horse hunter husband journalist king knight lawyer leader lion "
    "manager merchant mother musician officer painter parent pilot player poet priest prince prisoner professor publisher queen "
    "sailor scientist senator servant singer sister soldier student teacher tiger tourist visitor writer"
)
OTHERS = (
    "bag ball boat book bottle bridge camera candle car castle chair clock cloud computer cup desk door engine farm fence field flag "
    "flower forest garden gate hill hospital hotel house island lake lamp machine map market mirror mountain museum palace path phone "
    "picture plane plate pool river road rock school ship shop station statue stone store street table temple tent tower train tree "
    "truck wall window"
)
VERBS = [(" is", " are"), (" was", " were"), (" has", " have")]
BETWEEN = ("near", "behind", "beside")
# Pairs are made among places of one kind. The other kind: states of the USA, and provinces, regions and territories elsewhere.
COUNTRIES = {
    "Afghanistan": "Kabul",
    "Australia": "Canberra",
    "Austria": "Vienna",
    "Belgium": "Brussels",
    "Bulgaria": "Sofia",
    "Canada": "Ottawa",
    "Chile": "Santiago",
    "China": "Beijing",
    "Cuba": "Havana",
    "Denmark": "Copenhagen",
    "Egypt": "Cairo",
    "England": "London",
    "Finland": "Helsinki",
    "France": "Paris",
    "Germany": "Berlin",
    "Greece": "Athens",
    "Hungary": "Budapest",
    "Iran": "Tehran",
    "Iraq": "Baghdad",
    "Ireland": "Dublin",
    "Italy": "Rome",
    "Jamaica": "Kingston",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Norway": "Oslo",
    "Peru": "Lima",
    "Poland": "Warsaw",
    "Portugal": "Lisbon",
    "Russia": "Moscow",
    "Scotland": "Edinburgh",
    "Spain": "Madrid",
    "Sweden": "Stockholm",
    "Switzerland": "Bern",
    "Syria": "Damascus",
    "Tunisia": "Tunis",
    "Wales": "Cardiff",
}
STATES = {
    "Alabama": "Montgomery",
    "Arizona": "Phoenix",
    "California": "Sacramento",
    "Colorado": "Denver",
    "Connecticut": "Hartford",
    "Delaware": "Dover",
    "Hawaii": "Honolulu",
    "Illinois": "Springfield",
    "Indiana": "Indianapolis",
    "Maine": "Augusta",
    "Massachusetts": "Boston",
    "Mississippi": "Jackson",
    "Montana": "Helena",
    "Nebraska": "Lincoln",
    "Ohio": "Columbus",
    "Oregon": "Salem",
    "Tennessee": "Nashville",
    "Texas": "Austin",
    "Virginia": "Richmond",
    "Wisconsin": "Madison",
    "Alberta": "Edmonton",
    "Bavaria": "Munich",
    "Catalonia": "Barcelona",
    "Manitoba": "Winnipeg",
    "Ontario": "Toronto",
    "Queensland": "Brisbane",
    "Victoria": "Melbourne",
    "Bermuda": "Hamilton",
}
FRAMES = {
    "capital of": "The capital of {place} is the city of",
    "government": "The government of {place} meets in its capital city,",
    "seat": "The seat of the government of {place} is in",
    "name": "The name of the capital of {place} is",
    "question": "Question: What is the capital of {place}? Answer:",
    "train": "The train to the capital of {place} arrives in",
}
WORDS = (
    "list string file module function value object method argument type name key item line option attribute number character element "
    "exception error package program test thread event field result parameter instance variable statement expression command message "
    "server socket token handler group"
)
BEFORE = [
    ("This", "These"),
    ("Every such", "All such"),
    ("The first", "The first"),
    ("If the", "If the"),
    ("That", "Those"),
]


def agreement() -> Iterator[dict]:
    """Yields pairs that differ in the number of the subject: plural is clean, so that contrasts of pairs add up.

    A group is a subject and another noun. It has each verb once, with the other noun in turn in singular and in plural.
    """
    others = random.Random(0).sample(OTHERS.split(), len(OTHERS.split()))
    for group, (subject, other) in enumerate(zip(SUBJECTS.split(), others, strict=True)):
        for place, verb in enumerate(VERBS):
            plural = (group + place) % 2
            behind = f"{BETWEEN[(group + place) % 3]} the {other}{'s' * plural}"
            yield {
                "clean_prefix": f"The {subject}s {behind}",
                "patch_prefix": f"The {subject} {behind}",
                "clean_answer": verb[1],
                "patch_answer": verb[0],
                "label": f"{verb[1].strip()}, behind a {('singular', 'plural')[plural]}",
                "group": f"{subject}, {other}",
            }


def capitals() -> Iterator[dict]:
    """Yields pairs that differ in the place. A group is two places, which are in no other group, in each of the sentences."""
    for capitals in (COUNTRIES, STATES):
        places = random.Random(0).sample([*capitals], len(capitals))
        for (one, other), (label, frame) in itertools.product(
            zip(places[::2], places[1::2], strict=True), FRAMES.items()
        ):
            yield {
                "clean_prefix": frame.format(place=one),
                "patch_prefix": frame.format(place=other),
                "clean_answer": f" {capitals[one]}",
                "patch_answer": f" {capitals[other]}",
                "label": label,
                "group": f"{one}, {other}",
            }


def documentation() -> Iterator[dict]:
    """Yields pairs that differ in number, of words of Python's documentation: plural is clean. A group is a word, in one line."""
    for word, (before, of_many) in zip(WORDS.split(), itertools.cycle(BEFORE)):
        yield {
            "clean_prefix": f"{of_many} {word}s",
            "patch_prefix": f"{before} {word}",
            "clean_answer": " are",
            "patch_answer": " is",
            "label": before,
            "group": word,
        }


def main() -> None:
    """Writes the files. None has more prompts than a behaviour reads by default, so that none is left out by chance."""
    for name, prompts in (("agreement", agreement()), ("capitals", capitals()), ("documentation", documentation())):
        path = Path(__file__).parent / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in prompts))


if __name__ == "__main__":
    main()
