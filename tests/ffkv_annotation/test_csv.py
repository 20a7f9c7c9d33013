"""Sheets as CSV files: what a spreadsheet saves comes back, and nothing in a file is a formula."""

import csv
import io
from pathlib import Path

import pytest
from click.testing import CliRunner

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.terminal import FORMULA, read_safe_text, safe_text
from ffkv.cli import ffkv as command
from ffkv_annotation.records import MarkedPattern, append_record, read_records
from ffkv_annotation.sheets import PATTERNS, read_csv, read_sheet, with_marked_end, with_marked_ends, write_csv
from ffkv_annotation.step import import_person, latest_of

from .conftest import say

LABELS = ["=1+1", "'=1+1", "''@x", "+", "-1", "@SUM(A1)", "plain", "'quoted'", "=cmd|' /C calc'!A0", "＝1", 'a;b,c"d']


def rows_of(path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline="")))


def save(path, rows, separator=",", encoding="utf-8-sig", lineterminator="\r\n"):
    file = io.StringIO()
    csv.writer(file, delimiter=separator, lineterminator=lineterminator).writerows(rows)
    path.write_bytes(file.getvalue().encode(encoding))


@pytest.fixture
def file(annotations):
    return annotations / "csv" / "keys.anna.csv"


def block(rows, item) -> dict[str, list[str]]:
    return {row[2]: row for row in rows if row[1] == item}


def test_a_text_is_no_formula_and_comes_back(subtests):
    for text in [*LABELS, "", " ", "\t=1", " =1", "\n=1", "x=1"]:
        with subtests.test(text=text):
            safe = safe_text(text)
            assert not safe.lstrip(" \n").startswith(FORMULA)
            assert read_safe_text(safe) == text


def test_no_cell_of_any_file_is_a_formula(annotations, keys):
    item, patterns = (
        keys.orders["anna"][0],
        [MarkedPattern(label=each, kind="shallow", prefixes=(0,)) for each in LABELS],
    )
    write_csv(annotations / "csv/new.csv", keys, "anna", {item: say(keys, item, *patterns)})
    cells = [cell for path in (annotations / "csv").iterdir() for row in rows_of(path) for cell in row]
    assert any("=HYPERLINK" in cell for cell in cells) and any("+1" in cell for cell in cells)
    assert not [cell for cell in cells if cell.lstrip(" \n").startswith(FORMULA)]


def test_what_was_said_goes_out_and_comes_back(annotations, keys, tmp_path):
    first, second, third = keys.orders["anna"][:3]
    patterns = [
        MarkedPattern(label=each, kind="semantic", prefixes=(number % 8,)) for number, each in enumerate(LABELS)
    ]
    said = {
        first: say(keys, first, *patterns),
        second: say(keys, second),
        third: say(keys, third, MarkedPattern(label="half"), done=False),
    }
    assert len(LABELS) > PATTERNS
    write_csv(tmp_path / "out.csv", keys, "anna", said)
    back = {record.item: record for record in read_csv(tmp_path / "out.csv", keys, "anna")}
    found, given = ({item: (each.patterns, each.done) for item, each in all_.items()} for all_ in (back, said))
    assert found == given


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_person_marks_in_a_spreadsheet(own, annotations, keys, file, separator, encoding):
    rows = rows_of(file)
    first, second = keys.orders["anna"][:2]
    marked = block(rows, first)
    marked["label"][4], marked["label"][6] = "ends with cat", "animals"
    marked["kind"][4], marked["kind"][6] = "shallow", "Semantic "
    for number in ("0", "3", "7"):
        marked[number][4] = "x"
    marked["2"][6], marked["3"][6], marked["4"][6] = "X", "x ", "1"
    marked["done"][4] = "x"
    block(rows, second)["done"][5] = "x"
    save(file, [*rows, [""] * len(rows[0])], separator, encoding, "\n")
    run = ffkv.open(own)
    assert import_person(run, annotations, "keys", "anna", file) == (2, 2, len(keys.orders["anna"]))
    said = latest_of(annotations, keys, "person:anna")
    assert said[first].patterns == (
        MarkedPattern(label="ends with cat", kind="shallow", prefixes=(0, 3, 7)),
        MarkedPattern(label="animals", kind="semantic", prefixes=(2, 3, 4)),
    )
    assert said[first].done and said[second].done and said[second].patterns == ()
    assert import_person(run, annotations, "keys", "anna", file)[0] == 0  # nothing new
    assert len(read_records(annotations).history) == 2


def test_a_key_without_its_x_is_not_done(annotations, keys, file):
    rows = rows_of(file)
    item = keys.orders["anna"][0]
    block(rows, item)["0"][4] = "x"
    save(file, rows)
    (record,) = read_csv(file, keys, "anna")
    assert not record.done and record.patterns[0].kind == ""
    block(rows, keys.orders["anna"][1])["kind"][6] = "shallow"  # a kind alone is kept
    save(file, rows)
    assert [pattern.kind for pattern in read_csv(file, keys, "anna")[1].patterns] == ["shallow"]
    block(rows, item)["done"][4] = "x"
    save(file, rows)
    with pytest.raises(UserError, match="Choose shallow or semantic for pattern 1"):
        read_csv(file, keys, "anna")


def test_changes_come_back(own, annotations):
    sheet = read_sheet(annotations, "changes")
    file = annotations / "csv" / "changes.bert.csv"
    rows = rows_of(file)
    assert rows[0] == ["sheet", "item", "text", "before", "after", "related"]
    for row, answer in zip(rows[1:], ["yes", "No", "unsure", "TRUE"]):
        row[5] = answer
    save(file, rows)
    import_person(ffkv.open(own), annotations, "changes", "bert", file)
    said = latest_of(annotations, sheet, "person:bert")
    assert [said[item].related for item in sheet.orders["bert"][:4]] == ["true", "false", "unsure", "true"]
    assert len(said) == 4
    write_csv(file, sheet, "bert", said)
    assert [row[5] for row in rows_of(file)[1:5]] == ["yes", "no", "unsure", "yes"]


# Of an item: the row, the column, and what stands there.
WRONG = {
    "'bcdfghjk' of sheet 'keys' is not one": ("0", 1, "bcdfghjk"),
    "of sheet 'other' is not one": ("0", 0, "other"),
    "'maybe' is neither an x nor empty": ("0", 4, "maybe"),
    "the kind is 'deep'": ("kind", 4, "deep"),
    "has no row '99'": ("0", 2, "99"),
    "the row '1' of this item is there twice": ("0", 2, "1"),
    "at most 500 characters": ("label", 4, "x" * 501),
}


def test_a_file_that_says_what_cannot_be_is_refused_and_nothing_is_taken(own, annotations, keys, file, subtests):
    good, bad = keys.orders["anna"][:2]
    run, before = ffkv.open(own), file.read_bytes()
    for message, (row, column, text) in WRONG.items():
        with subtests.test(message=message):
            file.write_bytes(before)
            rows = rows_of(file)
            block(rows, good)["done"][4] = "x"
            block(rows, bad)[row][column] = text
            save(file, rows)
            with pytest.raises(UserError, match=message):
                import_person(run, annotations, "keys", "anna", file)
    assert read_records(annotations).history == []


def test_a_file_that_is_no_sheet_or_has_no_end_is_refused(keys, file):
    for content in (b"", b"\xff\xfe\x00", b'a,"b', "sheet,item\r\né".encode("latin-1"), b"\0" * 100):
        file.write_bytes(content)
        with pytest.raises(UserError):
            read_csv(file, keys, "anna")
    with pytest.raises(UserError, match="it has more than 52,428,800 bytes"):
        read_csv(Path("/dev/zero"), keys, "anna")


def write_marks(rows, item) -> None:
    """Marks the texts of a key as a person does, in two patterns."""
    own = block(rows, item)
    own["label"][4:6], own["kind"][4:6], own["done"][4] = ["war", "peace"], ["semantic", "shallow"], "x"
    for number in "012":
        own[number][4], own[number][5] = "x", "x" if number == "2" else ""


def rename(rows, place, name):
    rows[0][place] = name


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda rows: rename(rows, 4, "Muster 1"), "column 5, whose name in the first row is none of a sheet"),
        (lambda rows: rename(rows, 4, "pattern1"), "column 5"),
        (lambda rows: rename(rows, 5, ""), "column 6"),
        (lambda rows: rename(rows, 4, "pattern 0"), "column 5"),
        (lambda rows: rename(rows, 4, "pattern ٣"), "column 5"),
        (lambda rows: rename(rows, 5, "related"), "column 6"),
        (lambda rows: rename(rows, 5, "Pattern 1"), "'pattern 1' twice"),
        (lambda rows: rename(rows, 5, "text"), "'text' twice"),
        (lambda rows: rows[0].__delitem__(slice(5, None)), "column 6"),
        (lambda rows: [row.append("a note" * (number == 3)) for number, row in enumerate(rows)], "row 4: something is written"),
        (lambda rows: rows.insert(0, ["My sheet"]), "lacks the column 'sheet'"),
        (lambda rows: rename(rows, 3, "Text der Probe"), "lacks the column 'text'"),
        (lambda rows: rows[1].__setitem__(3, "about war"), "'about war' stands in the column text"),
        (lambda rows: rows.__setitem__(slice(1, None), [rows[1]] * 200), "more rows than the sheet"),
        (lambda rows: rows.__delitem__(4), "row 2: this item lacks its row '1'"),
        (lambda rows: rows.__delitem__(2), "lacks its row 'kind'"),
        (lambda rows: rows[0].extend(["x"] * 2000), "columns, and a sheet has at most 1000"),
    ],
)  # fmt: skip
def test_what_is_written_is_taken_over_or_refused_by_name(own, annotations, keys, file, damage, message):
    rows = rows_of(file)
    write_marks(rows, rows[1][1])
    damage(rows)
    save(file, rows)
    with pytest.raises(UserError, match=message):
        import_person(ffkv.open(own), annotations, "keys", "anna", file)
    assert read_records(annotations).history == []


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_columns_in_another_order_or_spelling_say_the_same(annotations, keys, file, separator):
    rows = rows_of(file)
    write_marks(rows, rows[1][1])
    save(file, rows)
    (plain,) = read_csv(file, keys, "anna")
    order = [5, 3, 4, 2, 1, 0]
    moved = [[row[place] for place in order] + ["", ""] for row in rows]  # with two columns without anything in them
    moved[0] = [name.upper().replace(" ", "  ") for name in moved[0]]
    save(file, moved, separator)
    (read,) = read_csv(file, keys, "anna")
    assert read.repeats(plain)
    said = [(pattern.label, pattern.kind, pattern.prefixes) for pattern in plain.patterns]
    assert said == [("war", "semantic", (0, 1, 2)), ("peace", "shallow", (2,))]


def test_blanks_at_the_ends_show():
    assert with_marked_ends(" of a ") == "␣of a␣"
    assert with_marked_ends("  ") == "␣␣"
    assert with_marked_ends("a\n b") == "a↵ b"
    assert with_marked_end(" of a ") == " of a␣" and with_marked_end("a\n") == "a↵"
    assert with_marked_ends("") == ""


def test_the_commands_write_and_take_over(own, annotations, tmp_path):
    def annotate(*words: str):
        return CliRunner().invoke(command, ["annotate", *words], catch_exceptions=False)

    words = ["--annotators", "eva,fritz", "--name", "third", "--per-layer", "2", "--changes", "3"]
    made = annotate("sheets", str(own), *words)
    assert made.exit_code == 0 and "third-keys.json" in made.output and "third-keys.fritz.csv" in made.output
    asked = ["--sheet", "third-changes", "--annotator", "eva"]
    output = tmp_path / "eva.csv"
    assert annotate("write-csv", str(own), *asked, "--output", str(output)).exit_code == 0
    rows = rows_of(output)
    rows[1][5] = "yes"
    save(output, rows)
    assert "Items that say something new: 1. Done: 1 of the" in annotate("import", str(own), str(output), *asked).output
    rows[2][5] = "no"
    save(output, [rows[0], rows[2]])  # what was said of the item that is not in the file stays
    assert "Items that say something new: 1. Done: 2 of the" in annotate("import", str(own), str(output), *asked).output
    with pytest.raises(UserError, match="It is for: eva"):
        annotate("import", str(own), str(output), *asked[:-1], "anna")


def test_records_of_a_csv_and_of_a_page_are_one_history(annotations, keys, file):
    item = keys.orders["anna"][0]
    append_record(annotations, say(keys, item, MarkedPattern(label="page", kind="shallow", prefixes=(1, 2, 3))))
    write_csv(file, keys, "anna", latest_of(annotations, keys, "person:anna"))
    assert block(rows_of(file), item)["label"][4] == "page"
