"""Sheets: what is in them, who judges what, and that nothing in them tells what the items are."""

import json
import re

import numpy as np
import pytest

import ffkv
from ffkv.base.errors import UserError
from ffkv.run.results.collect import collect
from ffkv_annotation.settings import Sheets
from ffkv_annotation.sheets import read_secret, read_sheet, sheet_names
from ffkv_annotation.step import choose_keys, deal, draw_changes, draw_keys, make_sheets, named_keys

from .conftest import DESIGN, MEMORIES, PREFIXES, pattern_tables


@pytest.fixture
def keys(run):
    return draw_keys(run, "keys", DESIGN)


@pytest.fixture
def changes(run):
    return draw_changes(run, "changes", DESIGN)


def test_a_sheet_has_the_keys_the_controls_and_the_repeats_that_were_asked_for(keys):
    sheet, secret = keys
    origins = list(secret.origins.values())
    first = [origin for origin in origins if not origin.repeats]
    assert sum(origin.sample == "trigger" for origin in first) == 4 * len(MEMORIES)
    assert sum(origin.sample == "random" for origin in first) == 3  # a quarter of 12
    for layer in range(len(MEMORIES)):
        of_layer = [one.memory for one in first if one.sample == "trigger" and one.layer == layer]
        assert len(set(of_layer)) == 4
    # 6 of 12 keys and 2 of 3 controls for both; 6 and 1 dealt out; a fifth twice.
    own = {name: [item for item in order if not secret.origins[item].repeats] for name, order in sheet.orders.items()}
    anna, bert = ({*own[name]} for name in ("anna", "bert"))
    assert (len(anna & bert), len(anna | bert)) == (8, 15) and abs(len(anna) - len(bert)) <= 1
    for annotator, order in sheet.orders.items():
        again = [item for item in order if secret.origins[item].repeats]
        assert len(again) == int(np.ceil(0.2 * len(own[annotator])))
        assert all(secret.origins[item].repeats in order for item in again)
    assert {*sheet.items} == {*secret.origins} == {item for order in sheet.orders.values() for item in order}


def test_the_texts_are_those_of_the_keys_and_each_prefix_is_known(run, keys):
    sheet, secret = keys
    for item, origin in secret.origins.items():
        assert len(sheet.items[item].prefixes) == PREFIXES == len({*origin.ranks})
        if origin.sample == "trigger":
            texts = run.memory(origin.layer, origin.memory).triggers["text"]
            assert list(sheet.items[item].prefixes) == [texts[rank] for rank in origin.ranks]
    assert any(list(origin.ranks) != sorted(origin.ranks) for origin in secret.origins.values())


def test_a_control_is_as_long_as_a_key_and_from_different_sentences(keys):
    _, secret = keys
    real = [sorted(one.position) for one in secret.origins.values() if one.sample == "trigger"]
    controls = [one for one in secret.origins.values() if one.sample == "random"]
    assert controls
    for control in controls:
        assert sorted(control.position) in real
        assert len({*control.sentence}) == PREFIXES


def test_a_repeated_item_has_the_same_texts_in_another_order(keys):
    sheet, secret = keys
    again = {item: origin.repeats for item, origin in secret.origins.items() if origin.repeats}
    assert again
    for item, first in again.items():
        assert sorted(sheet.items[item].prefixes) == sorted(sheet.items[first].prefixes)
    assert any(sheet.items[item].prefixes != sheet.items[first].prefixes for item, first in again.items())


def test_the_same_seed_makes_the_same_sheet_and_another_one_another(run, keys):
    assert draw_keys(run, "keys", DESIGN) == keys
    other, _ = draw_keys(run, "keys", DESIGN.model_copy(update={"seed": 4}))
    assert not {*other.items} & {*keys[0].items}


def test_changes_show_both_tokens_and_controls_another_second_token(run, changes):
    sheet, secret = changes
    table = run.table("prediction_changes")
    assert {one.sample for one in secret.origins.values()} == {"trigger", "random"}
    for item, origin in secret.origins.items():
        shown, row = sheet.items[item], table.iloc[origin.row]
        assert (shown.text, shown.before) == (row["text"], row["residual_token"])
        if origin.sample == "trigger":
            assert shown.after == row["output_token"]
        else:
            assert shown.after not in (row["output_token"], row["residual_token"])


def test_an_id_is_no_number_and_keys_and_controls_are_mixed(keys, changes):
    assert all(re.fullmatch("[bcdfghjkmnpqrstvwxz]{8}", item) for item in (*keys[0].items, *changes[0].items))
    sheet, secret = keys
    for order in sheet.orders.values():
        samples = [secret.origins[item].sample for item in order]
        assert samples != sorted(samples) and samples != sorted(samples, reverse=True)


def test_nothing_that_annotators_see_tells_layer_memory_or_control(own, annotations):
    seen = [*(annotations / "sheets").iterdir(), *(annotations / "csv").iterdir()]
    assert len(seen) == 2 + 4
    for path in seen:
        text = path.read_text(encoding="utf-8-sig")
        told = r"layer|memory|memories|control|random|trigger|sample|rank|sentence|secret|L\d+\.\d+"
        assert not re.search(told, text, re.I), path
    sheet = json.loads((annotations / "sheets" / "keys.json").read_text())
    # The items have one form, and lie in the order of their random ids.
    assert {tuple(item) for item in sheet["items"].values()} == {("prefixes", "text", "before", "after")}
    assert list(sheet["items"]) == sorted(sheet["items"])
    assert {len(item["prefixes"]) for item in sheet["items"].values()} == {PREFIXES}


def test_a_key_with_too_few_prefixes_is_not_chosen():
    by_prefix = pattern_tables()[1]
    short = by_prefix[(by_prefix["memory"] != 2) | (by_prefix["rank"] < 2)]
    chosen = choose_keys(short, 3, 10, np.random.default_rng(0))
    expected = [(layer, memory) for layer in range(3) for memory in (0, 1, 3, 4)]
    assert [(layer, memory) for layer, memory, _ in chosen] == expected


def test_chosen_memories_are_on_a_sheet_with_the_prefixes_that_the_tests_take(run, own, tmp_path):
    own = ffkv.open(own)
    collect(own, "mine", ["L2.4", "L0.1"])
    design = Sheets(annotators=["anna"], memories=["L1.3,L1.3", "@mine"], controls=0.5)
    paths = make_sheets(own, tmp_path, design)
    assert [path.name for path in paths] == ["keys.json", "keys.anna.csv"]  # no sheet of changes
    first = [origin for origin in read_secret(tmp_path, "keys").origins.values() if not origin.repeats]
    chosen = sorted((one.layer, one.memory) for one in first if one.sample == "trigger")
    assert chosen == [(0, 1), (1, 3), (2, 4)] and sum(one.sample == "random" for one in first) == 2
    by_prefix = run.files.details("keys/by_prefix")
    drawn = {key[:2]: key[2] for key in choose_keys(by_prefix, 3, 10, np.random.default_rng(0))}
    assert {key[:2]: key[2] for key in named_keys(run, ["L1.3", "L2.4"], 3)} == {key: drawn[key] for key in chosen[1:]}


def test_a_memory_that_is_not_there_or_has_too_few_prefixes_is_refused(run, tmp_path):
    for names, message in ((["L7.1"], "There is no layer 7"), (["@none"], "Nobody has made a list")):
        with pytest.raises(UserError, match=message):
            make_sheets(run, tmp_path, Sheets(annotators=["anna"], memories=names))
    with pytest.raises(
        UserError, match=r"^L1\.3 has trigger examples of 8 sentences, and a pattern needs 9\. Leave it out"
    ):
        named_keys(run, ["L1.3"], 9)


@pytest.mark.parametrize("annotators", [1, 2, 3, 7])
@pytest.mark.parametrize("shared", [0.0, 0.3, 1.0])
def test_everything_is_dealt_to_somebody_and_the_shared_part_to_all(annotators, shared):
    names = [f"a{number}" for number in range(annotators)]
    hands = deal([20, 5], names, shared, np.random.default_rng(1))
    assert sorted({number for hand in hands.values() for number in hand}) == list(range(25))
    common = set.intersection(*map(set, hands.values()))
    expected = int(np.ceil(20 * shared)) + int(np.ceil(5 * shared))
    assert len(common) == (expected if annotators > 1 else 25)
    assert max(map(len, hands.values())) - min(map(len, hands.values())) <= 1


def test_sheets_that_exist_stay(run, own, annotations):
    before = (annotations / "sheets/keys.json").read_bytes()
    with pytest.raises(UserError, match="Choose another name"):
        make_sheets(run, annotations, DESIGN.model_copy(update={"seed": DESIGN.seed + 1}))
    assert (annotations / "sheets/keys.json").read_bytes() == before
    make_sheets(run, annotations, DESIGN.model_copy(update={"name": "second"}))
    assert sheet_names(annotations) == ["changes", "keys", "second-changes", "second-keys"]


def test_the_same_call_goes_on_after_an_interruption(run, own, annotations):
    """What a person has begun in a CSV file stays."""
    missing = next((annotations / "csv").glob("keys.*"))
    whole = {path: path.read_bytes() for path in (annotations / "sheets/changes.json", missing)}
    for path in whole:
        path.unlink()
    keys = next(path for path in (annotations / "csv").glob("keys.*") if path != missing)
    keys.write_text("what a person wrote")
    make_sheets(run, annotations, DESIGN)
    assert {path: path.read_bytes() for path in whole} == whole
    assert keys.read_text() == "what a person wrote"


def test_a_sheet_of_another_run_is_refused(annotations):
    read_sheet(annotations, "keys", {"model_hash": "a" * 16})
    for read in (read_sheet, read_secret):
        with pytest.raises(UserError, match="another model"):
            read(annotations, "keys", {"model_hash": "b" * 16})


def test_a_damaged_or_missing_sheet_is_told(annotations):
    with pytest.raises(UserError, match="Choose one of: changes, keys"):
        read_sheet(annotations, "third")
    (annotations / "sheets/keys.json").write_text('{"name": "keys"}')
    with pytest.raises(UserError, match="is not a sheet of ffkv"):
        read_sheet(annotations, "keys")
    (annotations / "secret/changes.json").unlink()
    with pytest.raises(UserError, match="Without it nobody can tell"):
        read_secret(annotations, "changes")


def test_a_design_that_cannot_be_is_refused(run, tmp_path):
    names = ("", "a b", "../x", "a/b", "a\nb", "a,", "x" * 41)
    wrong = [{"annotators": each} for each in ([], ["Anna", "anna"], *([name] for name in names))]
    for change in (*wrong, {"per_layer": 0, "changes": 0}, {"name": "../x"}):
        with pytest.raises(UserError):
            make_sheets(run, tmp_path, Sheets(**{**DESIGN.model_dump(), **change}))
    assert not list(tmp_path.iterdir())
    assert Sheets(annotators=["Zoë-2_b, eva"]).annotators == ["Zoë-2_b", "eva"]
