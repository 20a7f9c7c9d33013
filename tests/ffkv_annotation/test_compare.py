"""From records to tables: what each annotator said about which key, and how far annotators agree."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support import described_columns

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.intervals import wilson
from ffkv.cli import ffkv as command
from ffkv.run.annotation_tables import TABLES
from ffkv_annotation.records import MarkedPattern, append_record, read_records
from ffkv_annotation.sheets import Origin, SecretKey, read_secret, read_sheet
from ffkv_annotation.step import compare_annotators
from ffkv_annotation.summaries import tabulate

from .conftest import say


@pytest.fixture
def secret(annotations):
    return read_secret(annotations, "keys")


def marked(origin: Origin, ranks, kind="shallow", label="") -> MarkedPattern:
    """A pattern on the prefixes of some ranks, wherever the item shows them."""
    return MarkedPattern(label=label, kind=kind, prefixes=[origin.ranks.index(rank) for rank in ranks])


def as_tests(origin: Origin) -> list[MarkedPattern]:
    """What the tests of the made-up run found in a key; nothing in a control."""
    if origin.sample != "trigger":
        return []
    found = [marked(origin, range(3), "shallow", "what the tests say")]
    return found + ([marked(origin, range(2, 6), "semantic", "so, too")] if origin.memory % 2 else [])


def judge(annotations, annotator, sheet, secret, patterns) -> None:
    """Says about every item what a function of its origin says."""
    for item, origin in secret.origins.items():
        append_record(annotations, say(sheet, item, *patterns(origin), annotator=annotator))


def row(table, first, second, unit, statistic):
    names = ["first", "second", "unit", "statistic"]
    (found,) = table[(table[names] == (first, second, unit, statistic)).all(axis=1)].itertuples()
    return found


def test_whoever_says_what_the_tests_say_agrees_with_them_fully(own, annotations, keys, secret):
    judge(annotations, "machine:oracle", keys, secret, as_tests)
    found = compare_annotators(ffkv.open(own), annotations)
    statistics = [("prefix", name) for name in ("raw", "kappa", "alpha", "alpha_masi")]
    for unit, statistic in [*statistics, ("pattern", "jaccard")]:
        measured = row(found["agreement"], "machine:oracle", "tests", unit, statistic)
        # Of shares, full agreement on 12 keys shows no more than Wilson's interval says. Of others it shows no scatter.
        ends = (wilson(12, 12)[0], 1) if statistic in ("raw", "jaccard") else (np.nan, np.nan)
        assert (measured.value, measured.keys) == (1, 12), (unit, statistic)
        np.testing.assert_equal((measured.low, measured.high), ends)
    assert row(found["agreement"], "machine:oracle", "tests", "prefix", "raw").units == 12 * 8
    every_key = row(found["agreement"], "machine:oracle", "tests", "key", "alpha")
    assert np.isnan(every_key.value)  # each key has a pattern for both, so chance alone would agree
    # The form of figure 2 is the same for both, over the keys that each judged.
    shares = found["figure_2_by_annotator"].set_index(["annotator", "layer", "category"])
    assert (shares.loc["machine:oracle"].groupby("layer")["share"].sum() - 1).abs().max() < 1e-12
    assert (shares.loc["machine:oracle"]["keys"] == 4).all() and (shares.loc["tests"]["keys"] == 5).all()


def test_prefix_numbers_are_the_ranks_whatever_the_order_of_the_item(own, annotations, keys, secret):
    keys_of_run = [(item, one) for item, one in secret.origins.items() if one.sample == "trigger"]
    item, origin = next(each for each in keys_of_run if list(each[1].ranks) != sorted(each[1].ranks))
    append_record(annotations, say(keys, item, MarkedPattern(label="l", kind="semantic", prefixes=(0, 1, 2))))
    found = compare_annotators(ffkv.open(own), annotations)
    (pattern,) = found["patterns"].itertuples()
    assert list(pattern.ranks) == sorted(origin.ranks[:3])
    assert (pattern.annotator, pattern.sample, pattern.layer, pattern.memory, pattern.family, pattern.label, pattern.prefixes) == (
        "person:anna", "trigger", origin.layer, origin.memory, "semantic", "l", 3,
    )  # fmt: skip
    by_rank = found["by_prefix"].set_index("rank")["category"]
    assert [by_rank[rank] for rank in origin.ranks] == ["semantic"] * 3 + ["none"] * 5


def test_drafts_and_patterns_in_too_few_prefixes_do_not_count(own, annotations, keys, secret):
    first, second = [item for item, one in secret.origins.items() if one.sample == "trigger"][:2]
    append_record(annotations, say(keys, first, MarkedPattern(kind="shallow", prefixes=(0, 1, 2)), done=False))
    append_record(annotations, say(keys, second, MarkedPattern(kind="shallow", prefixes=(0, 1))))
    found = compare_annotators(ffkv.open(own), annotations)
    assert len(found["patterns"]) == 0 and len(found["by_prefix"]) == 8
    assert {*found["by_prefix"]["category"]} == {"none"}


def test_the_false_positive_rate_is_of_controls(own, annotations, keys, secret):
    judge(annotations, "person:anna", keys, secret, lambda origin: [marked(origin, range(4))])  # sees it in everything
    judge(annotations, "person:bert", keys, secret, as_tests)
    table = compare_annotators(ffkv.open(own), annotations)["annotators"].set_index("annotator")
    assert table.loc["person:anna", ["controls", "controls_with_pattern", "false_positive_rate"]].tolist() == [3, 3, 1]
    assert table.loc["person:bert", ["controls", "controls_with_pattern", "false_positive_rate"]].tolist() == [3, 0, 0]
    # Of the tests' five random keys per layer, the odd ones, 1 and 3, have a pattern.
    assert table.loc["tests", ["controls", "controls_with_pattern", "false_positive_rate"]].tolist() == [15, 6, 0.4]
    assert table.loc["person:anna", "coverage"] == 0.5 and table.loc["person:anna", "patterns_per_key"] == 1


def test_controls_are_not_part_of_the_agreement(own, annotations, keys, secret):
    judge(annotations, "person:anna", keys, secret, lambda origin: as_tests(origin) or [marked(origin, range(8))])
    judge(annotations, "person:bert", keys, secret, as_tests)
    found = compare_annotators(ffkv.open(own), annotations)["agreement"]
    measured = row(found, "person:anna", "person:bert", "prefix", "raw")
    assert (measured.value, measured.keys) == (1, 12)


def test_a_person_is_compared_with_himself_on_repeated_items(own, annotations, keys, secret):
    own_items = {item: secret.origins[item] for item in keys.orders["anna"]}
    again = {item: one for item, one in own_items.items() if one.repeats and one.sample == "trigger"}
    assert again
    for item, origin in again.items():
        append_record(annotations, say(keys, origin.repeats, *as_tests(secret.origins[origin.repeats])))
        append_record(annotations, say(keys, item))
    found = compare_annotators(ffkv.open(own), annotations)
    measured = row(found["agreement"], "person:anna", "person:anna", "prefix", "raw")
    assert measured.keys == len(again)
    covered = [6 if origin.memory % 2 else 3 for origin in again.values()]
    assert measured.value == pytest.approx(1 - sum(covered) / (8 * len(again)))
    # Figure 2 counts the first time alone.
    shares = found["figure_2_by_annotator"]
    assert shares[shares["annotator"] == "person:anna"]["prefixes"].sum() == 8 * len(again)


def test_people_are_compared_with_each_other_together(own, annotations, keys, secret):
    for annotator, seen in [("person:anna", 3), ("person:bert", 3), ("person:carl", 4)]:
        judge(annotations, annotator, keys, secret, lambda origin, seen=seen: [marked(origin, range(seen))])
    found = compare_annotators(ffkv.open(own), annotations)["agreement"]
    together = row(found, "people", "people", "prefix", "alpha")
    pair = row(found, "person:anna", "person:bert", "prefix", "alpha")
    assert pair.value == 1 and together.value < 1 and together.keys == 12 and together.units == 96
    # Per key: 3 units where all say shallow, 1 where one of three does, 4 where nobody does.
    # Ratings that can be paired: 10 shallow and 14 none per key; disagreeing pairs: 2 of the one unit, weight 1/2 each way.
    total, shallow, none = 24 * 12, 10 * 12, 14 * 12
    expected = 1 - (2 * 12 / total) / (2 * shallow * none / (total * (total - 1)))
    assert together.value == pytest.approx(expected, abs=1e-12)
    assert not len(found[(found["first"] == "people") & found["statistic"].isin(["raw", "kappa"])])


def test_changes_are_counted_and_compared(own, annotations):
    sheet, secret = read_sheet(annotations, "changes"), read_secret(annotations, "changes")
    real = [item for item, one in secret.origins.items() if one.sample == "trigger" and not one.repeats]
    controls = [item for item, one in secret.origins.items() if one.sample == "random" and not one.repeats]
    for number, item in enumerate(real):
        answer = ["true", "true", "unsure", "false"][min(number, 3)]
        append_record(annotations, say(sheet, item, related=answer))
        append_record(annotations, say(sheet, item, annotator="person:bert", related="true" if number < 3 else "false"))
    for item in controls:
        append_record(annotations, say(sheet, item, related="false"))
    found = compare_annotators(ffkv.open(own), annotations)
    table = found["related_changes"].set_index(["annotator", "sample"])
    assert table.loc[("person:anna", "trigger"), ["changes", "related_changes", "unsure"]].tolist() == [6, 2, 1]
    assert table.loc[("person:anna", "trigger"), "share"] == pytest.approx(1 / 3)
    assert table.loc[("person:anna", "random"), ["changes", "related_changes"]].tolist() == [len(controls), 0]
    assert table.loc[("person:bert", "trigger"), "related_changes"] == 3
    measured = row(found["agreement"], "person:anna", "person:bert", "change", "raw")
    assert (measured.value, measured.keys) == (pytest.approx(5 / 6), 6)
    assert len(found["patterns"]) == 0


def test_before_anybody_is_done_the_tables_are_about_the_tests(own, annotations, keys, capsys):
    append_record(annotations, say(keys, keys.orders["anna"][0], done=False))
    found = compare_annotators(ffkv.open(own), annotations)
    assert "Nobody is done" in capsys.readouterr().err
    assert {*found["figure_2_by_annotator"]["annotator"]} == {*found["annotators"]["annotator"]} == {"tests"}
    assert not len(found["agreement"]) and not len(found["patterns"]) and not len(found["related_changes"])


def test_a_record_without_its_secret_key_or_of_another_item_is_told(own, annotations, keys):
    wrong = MarkedPattern(kind="shallow", prefixes=(0, 1, 99))
    append_record(annotations, say(keys, keys.orders["anna"][0], wrong))
    with pytest.raises(UserError, match="does not have: it has 8"):
        compare_annotators(ffkv.open(own), annotations)
    with pytest.raises(UserError, match="no secret key has it"):
        tabulate([say(keys, "bcdfghjk")], {"keys": SecretKey(name="keys", identity={}, origins={})}, 3)
    (annotations / "secret/keys.json").unlink()
    with pytest.raises(UserError, match="Without it nobody can tell"):
        compare_annotators(ffkv.open(own), annotations)


def test_a_torn_line_is_told_and_the_rest_counts(own, annotations, keys, capsys):
    path = append_record(annotations, say(keys, keys.orders["anna"][0]))
    with path.open("ab") as file:
        file.write(b'{"annotator": "person:an')
    found = compare_annotators(ffkv.open(own), annotations)
    assert "is not whole" in capsys.readouterr().err
    assert {*found["by_prefix"]["annotator"]} <= {"person:anna"}


def test_the_command_writes_the_same_bytes_again(own, annotations, keys, secret, tmp_path):
    judge(annotations, "person:anna", keys, secret, lambda origin: as_tests(origin)[:1])
    judge(annotations, "person:bert", keys, secret, as_tests)
    outputs = [tmp_path / "one", tmp_path / "two"]
    for output in outputs:
        asked = ["--results", str(own), "--annotations", str(annotations), "--output", str(output)]
        done = CliRunner().invoke(command, ["annotate", "agreement", *asked], catch_exceptions=False)
        assert done.exit_code == 0
    names = {path.name for path in outputs[0].iterdir() if not path.name.endswith(".sha256")}
    assert names == {Path(table.path).name for table in TABLES} and len(names) == 9
    for name in names:
        assert (outputs[0] / name).read_bytes() == (outputs[1] / name).read_bytes()
    columns = described_columns()
    assert all(tables.read(outputs[0] / name).columns.tolist() == columns[f"annotation/{name}"] for name in names)
    assert tables.read(outputs[0] / "patterns.parquet").attrs["model_hash"] == "a" * 16
    assert len(read_records(annotations).history) == 2 * len(secret.origins)
