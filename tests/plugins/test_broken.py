"""What is broken in a package of others costs what it would have added, and is told by its name."""

import pytest
from support import settings_file, snakemake

from ffkv.base import doors
from ffkv.base.errors import UserError
from ffkv.run.report import registry
from tests.plugins.conftest import BESIDE, CODE, edit, ffkv, python

# What of the package is broken: by file, its content, the command or the format that is lost, and the problem that is told.
BROKEN = [
    {
        "branch.py": ("raise RuntimeError('no branch here')", "lengths", "RuntimeError: no branch here"),
        "count.py": ("def", "count", "SyntaxError"),
        "names.py": ("FORMAT = 3", "names", "TypeError: it is no Format"),
    },
    {"settings.py": ("import no_such_package", "lengths", "No module named 'no_such_package'")},
    {
        "settings.py": (
            "from ffkv.base.settings import Section\nclass Lengths(Section):\n    quantile: float",
            "lengths",
            "quantile",
        )
    },
]


# What of the description of the branch is wrong: what is there, and what is in its place.
UNFIT = [
    ('"ffkv_toy.summarize:', '"ffkv_toy.sum_up:'),
    ('settings=("lengths",)', 'settings=("length",)'),
    ('reads=("values",)', 'reads=("value",)'),
    ("steps={", "steps=None and {"),
    ("lengths/value_lengths.csv", "keys/activity.csv"),
    ("lengths/value_lengths.csv", "lengths/activity.csv"),
    ('{"value_lengths": "Lengths', '{"figure_4": "Lengths'),
    ("BRANCH =", "raise SystemExit('no branch here')\nBRANCH ="),
    ("quantile: float = Field(0.5", "quantile: float = Field(1.5"),
    ("def summarize_lengths(", "def summarize_lengths(:"),
    ("SECTION =", "SECTION = ="),
    ("class Lengths(Section)", "class Lengths(dict)"),
]
FILES = {"lengths/": "tables.py", "quantile": "settings.py", "class": "settings.py", "def": "summarize.py"}
FILES |= {"SECTION": "section.py"}


@pytest.mark.parametrize("there, instead", UNFIT)
def test_a_branch_that_does_not_fit_costs_itself_alone(own, of_others, there, instead, tmp_path):
    """Whoever asks for it is told why, and the rules of all others are there."""
    name = next((FILES[begins] for begins in FILES if there.startswith(begins)), "branch.py")
    edit(tmp_path, name, there, instead)
    done = ffkv(own, "lengths", "-h")
    assert done.returncode == 2 and "'lengths' cannot be used" in done.stderr and "ffkv-toy 1.0" in done.stderr
    assert python(own, CODE) == of_others


def test_a_branch_without_rules_costs_itself_alone(own, of_others, tmp_path):
    (tmp_path / "site/ffkv_toy/rules.smk").unlink()
    assert "ffkv_toy/rules.smk" in ffkv(own, "lengths", "-h").stderr
    assert python(own, CODE) == of_others


FIND = """
from ffkv.run.export.step import UserError, find_format
try:
    find_format("names")
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_package_costs_its_own_commands_alone(own, broken, tmp_path):
    """By name, in one sentence. The help, and all that is not of the package, are there."""
    for name, (content, _, _) in broken.items():
        (tmp_path / "site/ffkv_toy" / name).write_text(content + "\n")
    helped = ffkv(own, "-h")
    assert helped.returncode == 0
    for name, (_, asked, problem) in broken.items():
        if name == "names.py":
            said = python(own, FIND)
        else:
            assert f"  {asked} " in helped.stdout
            done = ffkv(own, asked, "-h")
            assert done.returncode == 2
            said = done.stderr
        assert f"{asked!r} cannot be used" in said and problem in said and "ffkv-toy 1.0" in said
        assert len(said.strip().splitlines()) == 1
    assert ffkv(own, "keys", "-h").returncode == 0
    assert ffkv(own, "settings", "--check", str(settings_file(tmp_path))).returncode == 0


def test_a_branch_that_has_the_name_of_another_is_refused(own, tmp_path):
    names = next((tmp_path / "site").glob("ffkv_toy-*.dist-info/entry_points.txt"))
    names.write_text(names.read_text().replace("lengths =", "keys ="))
    assert "patterns" in ffkv(own, "keys", "-h").stdout
    assert "must have another name" in python(own, "from ffkv.branches.registry import BROKEN; print(*BROKEN.values())")


RAISES = """
from ffkv.base.fault import explain
from ffkv.corpus.sources import brought_documents
try:
    [*brought_documents('counting')]
except Exception as error:
    print(explain(error)[0])
"""


@pytest.mark.parametrize(
    ("there", "instead", "kind"),
    [
        ("Document(f", "(f", "TypeError: "),
        ('Document(f"document {number}"', "Document(number", "TypeError: "),
        ("        yield", "        raise SystemExit(0)\n        yield", "RuntimeError: `counting` called sys.exit(0)"),
    ],
)
def test_a_corpus_that_fails_is_told_as_of_its_package(own, tmp_path, there, instead, kind):
    """Also where none of its own code is running at the time. It cannot end the process without a word."""
    edit(tmp_path, "counting.py", there, instead)
    assert f"most likely a defect of the package ffkv-toy 1.0: {kind}" in python(own, RAISES)


SECTION = """
import sys
from types import SimpleNamespace
from unittest.mock import patch
import pandas as pd
from ffkv.branches.registry import BRANCHES
from ffkv.run.report import section
sys.stderr = sys.stdout
run = SimpleNamespace(
    files=SimpleNamespace(unmeasured={}, table_files={}),
    tables=["value_lengths"],
    table=lambda name: pd.DataFrame({"layer": [0, 1], "length": [1.0, 2.0]}),
    anatomy=SimpleNamespace(layers=[0, 1]),
    settings=SimpleNamespace(
        knows=lambda name: name == "lengths",
        report=SimpleNamespace(paper_curves=False),
        lengths=SimpleNamespace(quantile=0.5),
    ),
)
with patch.object(section, "note", lambda *names, **values: "nothing"):
    exhibits = section.draw_exhibits(run, only="lengths")
    arranged = section.arrange(run, BRANCHES["lengths"], exhibits)
    (only,), summed = exhibits.values(), [section.summary(run), section.told(run)]
    print("ON THE PAGE", only.caption.text, "MISSING" * (not only.tables), only.svg[:4])
    print([block.text for block in arranged["after"]], summed)
"""
FIGURE = "the figure value_lengths"


@pytest.mark.parametrize(
    ("there", "instead", "what", "kind"),
    [
        ("drawing.canvas()", "drawing.no_canvas()", FIGURE, "AttributeError: "),
        ("    return figure", "    raise SystemExit(3)", FIGURE, f"`{FIGURE}` called sys.exit(3)"),
        ('{"value_lengths": Figure', '{"other": Figure', FIGURE, "no figure value_lengths"),
        ('{"value_lengths": Figure', '{"other": Figure', "the tables", "does not name the figures other"),
        ("summary=summary", "after=lambda run: 'a table'", "the tables", "should return a list of TableBlock"),
        ('return {"largest', 'return 0 / 0 or {"largest', "the main numbers", "ZeroDivisionError: division by zero"),
        ("summary=summary", "summary=lambda run, control: 'a b'", "the summary", "should return a list of str"),
        ("SECTION = ", "1 / 0\nSECTION = ", "the summary", "cannot be imported (ZeroDivisionError"),
        ("summary=summary)", "summary=summary)\nSECTION = draw", "the tables", "it is no Section"),
    ],
)
def test_a_part_of_a_section_that_fails_is_missing_alone(own, tmp_path, there, instead, what, kind):
    """The terminal is told where the traceback is, and the page says in its place what is missing and of which package."""
    edit(tmp_path, "section.py", there, instead)
    said, _, page = python(own, SECTION).partition("ON THE PAGE")
    assert f"The page lacks {what} of 'lengths'. " in said and kind in said and "package ffkv-toy 1.0" in said
    assert f"The package ffkv-toy 1.0 cannot make {what} of 'lengths'. " in page and kind in page
    assert "<svg" in page and ("MISSING" in page) == (FIGURE in said)


def test_a_section_of_ffkv_that_fails_and_a_damaged_table_end_the_report(monkeypatch):
    """Nothing is made from damaged files, and ffkv's own part of the page has no holes."""
    monkeypatch.setattr(doors, "brought_by", lambda door, name: "ffkv-toy 1.0" * (name == "lengths"))
    for section, error in (("keys", ZeroDivisionError()), ("lengths", UserError("It is damaged."))):
        with pytest.raises(type(error)), registry.excused(section, "the tables"):
            raise error


def test_a_step_that_raises_or_returns_something_else_is_told_as_of_its_package(own, tiny, tmp_path):
    command = [
        "lengths",
        "summarize",
        "--values",
        str(tiny / "results/tiny/values.h5"),
        "--output",
        str(tmp_path / "out"),
    ]
    for there, instead, kind in (
        ("found = read", "1 / 0\n    found = read", "ZeroDivisionError"),
        ("1 / 0\n    found = read", "return 3\n    found = read", "AttributeError"),
        ("return 3\n", "raise SystemExit(0)\n", "RuntimeError: `lengths summarize` called sys.exit(0)"),
        ("raise SystemExit(0)\n    ", "", ""),
        (
            "np.quantile(own, settings.quantile)",
            "-1",
            "ValueError: lengths/value_lengths.csv: its column length has -1",
        ),
    ):
        edit(tmp_path, "summarize.py", there, instead)
        told = ffkv(own, *command)
        if not kind:
            assert told.returncode == 0
            continue
        assert told.returncode == 70 and f"most likely a defect of the package ffkv-toy 1.0: {kind}" in told.stderr


@pytest.mark.workflow
@pytest.mark.parametrize(
    ("there", "instead", "told"),
    [
        ("rule lengths_summarize:", "rule lengths_summarize", "SyntaxError"),
        ("rule lengths_summarize:", "rule keys_summarize:", "The name keys_summarize is already used"),
        ("runs.options(", "runs.no_options(", "has no attribute 'no_options'"),
    ],
)
def test_rules_that_cannot_be_read_are_told_with_their_package(own, tmp_path, there, instead, told):
    edit(tmp_path, "rules.smk", there, instead)
    done = snakemake(tmp_path, settings_file(tmp_path), "-n", environment=own)
    said = done.stdout + done.stderr
    assert done.returncode and "They are of the package ffkv-toy 1.0" in said
    assert f"{tmp_path}/site/ffkv_toy/rules.smk" in said and told in said


def test_a_reader_that_fails_is_left_out_where_the_code_of_a_run_counts(own, tmp_path):
    edit(tmp_path, "linked.py", "lambda folder: (", "lambda folder: 1 / 0 and (")
    assert python(own, BESIDE % (str(tmp_path), "theirs/text")) == "['', '']"


@pytest.mark.parametrize(
    "there", ["    import torch\n    from transformers import AutoConfig", '"link.txt").is_file()']
)
def test_a_reader_cannot_end_the_process_without_a_word(own, tmp_path, there):
    """Where it loads, this is told as of its package; where it only looks, it is left out."""
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/link.txt").write_text("gpt2")
    instead = f"    raise SystemExit(0)\n{there}" if "import" in there else '"link.txt").is_file() and exit(0)'
    edit(tmp_path, "linked.py", there, instead)
    told = ffkv(own, "inspect", str(tmp_path / "linked"))
    assert told.returncode and "`linked` called sys.exit(0" in told.stderr


def test_a_corpus_that_cannot_be_imported_is_told_before_a_run(own, tmp_path):
    edit(tmp_path, "counting.py", "ffkv.corpus.document ", "ffkv.corpus.documents ")
    file = settings_file(tmp_path, corpus={"dataset": "counting"})
    told = ffkv(own, "settings", str(file), folder=tmp_path)
    assert told.returncode == 2 and "'counting' cannot be used" in told.stderr and "ffkv-toy 1.0" in told.stderr


READ = """
import sys
from pathlib import Path
from ffkv.run.results.expected import read_settings
sys.stderr = sys.stdout
settings = read_settings(Path("results/tiny"))
print(settings.knows("lengths"), settings.seed)
"""


def test_a_run_of_another_version_of_a_package_opens(own, tmp_path):
    """What that version has in its settings and this one has not, or refuses, costs its branch alone."""
    (tmp_path / "results/tiny/lengths").mkdir(parents=True)
    for section, problem in (
        ('{"quantile": 0.5}', ""),
        ("{}", ""),
        ('{"quantile": 7}', "lengths.quantile is 7: must be at most 1."),
        ('{"share": 0.5}', "Unknown setting 'lengths.share'."),
    ):
        (tmp_path / "results/tiny/settings.json").write_text(f'{{"seed": 3, "lengths": {section}}}')
        said = python(own, READ, tmp_path)
        assert said.endswith(f"{not problem} 3") and problem in said
        assert ("another version than ffkv-toy 1.0 of its package wrote its settings" in said) == bool(problem)


def test_of_two_packages_with_one_name_neither_is_taken(own, tmp_path):
    for name in ("first", "second"):
        folder = tmp_path / f"site/{name}-2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2\n")
        (folder / "entry_points.txt").write_text("[ffkv.formats]\nnames = ffkv_toy.names:FORMAT\n")
    assert "several packages bring it (ffkv-toy 1.0, first 2, second 2)" in python(own, FIND)


def test_settings_of_a_branch_that_cannot_be_used_say_so(own, tmp_path):
    (tmp_path / "site/ffkv_toy/settings.py").write_text("1 / 0\n")
    told = ffkv(own, "settings", str(settings_file(tmp_path, lengths={"quantile": 0.5})), folder=tmp_path).stderr
    assert "Unknown setting 'lengths': its branch cannot be used, and `ffkv lengths` says why" in told


def test_a_damaged_list_of_entry_points_is_named(own, tmp_path):
    """Libraries that ffkv needs fail on it, too."""
    names = next((tmp_path / "site").glob("ffkv_toy-*.dist-info/entry_points.txt"))
    names.write_text("[ffkv.branches]\nno equals sign\n")
    told = ffkv(own, "-h")
    assert told.returncode == 1 and len(told.stderr.strip().splitlines()) == 1
    assert f"{tmp_path}/site: entry_points.txt of the installed package ffkv-toy is damaged" in told.stderr
