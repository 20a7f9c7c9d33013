"""Sheets as CSV files: what a spreadsheet saves comes back, and nothing in a file is a formula."""

import csv
import io
from pathlib import Path

import pytest
from click.testing import CliRunner

import ffkv
from ffkv.apps.annotation.csv_sheets import PATTERNS, read_csv, with_marked_end, with_marked_ends, write_csv
from ffkv.apps.annotation.records import MarkedPattern, Record, append_record, read_records
from ffkv.apps.annotation.settings import Sheets
from ffkv.apps.annotation.sheets import read_sheet
from ffkv.apps.annotation.step import import_person, latest_of_person
from ffkv.base.errors import UserError
from ffkv.base.files.spreadsheet import FORMULA, read_safe_text, safe_text
from ffkv.cli import ffkv as command

LABELS = ["=1+1", "'=1+1", "''@x", "+", "-1", "@SUM(A1)", "plain", "'quoted'", "=cmd|' /C calc'!A0", "＝1", 'a;b,c"d']


def rows_of(path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline="")))


def save(path, rows, separator=",", encoding="utf-8-sig", lineterminator="\r\n"):
    file = io.StringIO()
    csv.writer(file, delimiter=separator, lineterminator=lineterminator).writerows(rows)
    path.write_bytes(file.getvalue().encode(encoding))


def say(sheet, item, *patterns, done=True) -> Record:
    return Record(
        annotator="person:anna",
        sheet=sheet.name,
        item=item,
        identity=sheet.identity,
        kind="key",
        patterns=patterns,
        done=done,
    )


@pytest.fixture
def keys(annotations):
    return read_sheet(annotations, "keys")


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
    said = {
        keys.orders["anna"][0]: say(
            keys, keys.orders["anna"][0], *(MarkedPattern(label=each, kind="shallow", prefixes=(0,)) for each in LABELS)
        )
    }
    write_csv(annotations / "csv/new.csv", keys, "anna", said)
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
    assert {item: (record.patterns, record.done) for item, record in back.items()} == {
        item: (record.patterns, record.done) for item, record in said.items()
    }


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
    said = latest_of_person(annotations, keys, "anna")
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
    said = latest_of_person(annotations, sheet, "bert")
    assert [said[item].related for item in sheet.orders["bert"][:4]] == ["true", "false", "unsure", "true"]
    assert len(said) == 4
    write_csv(file, sheet, "bert", said)
    assert [row[5] for row in rows_of(file)[1:5]] == ["yes", "no", "unsure", "yes"]


def broken(rows, item, name):
    own = block(rows, item)
    if name == "an item of somebody else":
        own["0"][1] = "bcdfghjk"
    elif name == "another sheet":
        own["0"][0] = "other"
    elif name == "a mark that is none":
        own["0"][4] = "maybe"
    elif name == "a kind that is none":
        own["0"][4], own["kind"][4] = "x", "deep"
    elif name == "a row that is none":
        own["0"][2] = "99"
    elif name == "a row that is there twice":
        own["0"][2] = "1"
    elif name == "a column that is missing":
        rows[0][1] = "thing"
    elif name == "a label that is too long":
        own["label"][4], own["kind"][4] = "x" * 501, "shallow"


@pytest.mark.parametrize(
    "name",
    ["an item of somebody else", "another sheet", "a mark that is none", "a kind that is none", "a row that is none",
     "a row that is there twice", "a column that is missing", "a label that is too long"],
)  # fmt: skip
def test_a_file_that_says_what_cannot_be_is_refused_and_nothing_is_taken(own, annotations, keys, file, name):
    rows = rows_of(file)
    good, bad = keys.orders["anna"][:2]
    block(rows, good)["done"][4] = "x"
    broken(rows, bad, name)
    save(file, rows)
    with pytest.raises(UserError):
        import_person(ffkv.open(own), annotations, "keys", "anna", file)
    assert read_records(annotations).history == []


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b'a,"b', "sheet,item\r\né".encode("latin-1"), b"\0" * 100])
def test_a_file_that_is_no_sheet_is_refused(keys, file, content):
    file.write_bytes(content)
    with pytest.raises(UserError):
        read_csv(file, keys, "anna")


def write_marks(rows, item) -> None:
    """Marks the texts of a key as a person does, in two patterns."""
    own = block(rows, item)
    own["label"][4:6], own["kind"][4:6], own["done"][4] = ["war", "peace"], ["semantic", "shallow"], "x"
    for number in "012":
        own[number][4], own[number][5] = "x", "x" if number == "2" else ""


def rename(rows, place, name):
    rows[0][place] = name


def double(rows, place):
    for row in rows:
        row.insert(place, "x" if row is not rows[0] else rows[0][place])


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
    assert [(pattern.label, pattern.kind, pattern.prefixes) for pattern in plain.patterns] == [
        ("war", "semantic", (0, 1, 2)),
        ("peace", "shallow", (2,)),
    ]


def test_a_kind_alone_is_kept(keys, file):
    rows = rows_of(file)
    block(rows, rows[1][1])["kind"][6] = "shallow"
    save(file, rows)
    assert [pattern.kind for pattern in read_csv(file, keys, "anna")[0].patterns] == ["shallow"]


def test_a_file_without_end_is_refused(keys):
    with pytest.raises(UserError, match="it has more than 52,428,800 bytes"):
        read_csv(Path("/dev/zero"), keys, "anna")


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
    assert "1 items say something new. 1 of the" in annotate("import", str(own), str(output), *asked).output
    with pytest.raises(UserError, match="It is for: eva"):
        annotate("import", str(own), str(output), *asked[:-1], "anna")


def test_a_name_that_is_hard_to_write_in_a_file_is_refused():
    assert Sheets(annotators=["Zoë-2_b, eva"]).annotators == ["Zoë-2_b", "eva"]
    for name in ("", "a b", "../x", "a\nb", "a,", "x" * 41):
        with pytest.raises(UserError):
            Sheets(annotators=[name])


def test_records_of_a_csv_and_of_a_page_are_one_history(annotations, keys, file):
    item = keys.orders["anna"][0]
    append_record(annotations, say(keys, item, MarkedPattern(label="page", kind="shallow", prefixes=(1, 2, 3))))
    write_csv(file, keys, "anna", latest_of_person(annotations, keys, "anna"))
    assert block(rows_of(file), item)["label"][4] == "page"
