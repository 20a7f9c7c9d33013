"""What is broken in a package of others costs what it would have added, and is told by its name."""

import pytest
from support import settings_file, snakemake

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
from ffkv.base.doors import inside
from ffkv.base.fault import explain
from ffkv.branches.branch import load
from ffkv.branches.registry import BRANCHES
from ffkv.corpus.sources import brought_documents
from ffkv.run.report.registry import load_figure, load_section
from ffkv.run.report.section import draw_exhibits, summary, told
from types import SimpleNamespace
run = SimpleNamespace(files=SimpleNamespace(unmeasured={}), tables=["value_lengths"], settings=SimpleNamespace(
    knows=lambda name: name == "lengths", report=SimpleNamespace(paper_curves=False), lengths=SimpleNamespace(quantile=0.5)))
try:
    %s
except Exception as error:
    print(explain(error)[0])
"""


@pytest.mark.parametrize(
    ("name", "there", "instead", "does", "kind"),
    [
        ("section.py", '.tables["value_lengths"]', "", "load_section('lengths')", ""),
        ("section.py", 'return {"largest', 'return 0 / 0 or {"largest', "summary(run)", "ZeroDivisionError"),
        ("section.py", "numbers)", "lambda run: 3)", "summary(run)", "AttributeError"),
        ("section.py", '{"value_lengths": Figure', '{"other": Figure', "load_figure('value_lengths')", "KeyError"),
        (
            "section.py",
            'run.table("value_lengths")',
            "run.no_table",
            "draw_exhibits(run, only='lengths')",
            "AttributeError",
        ),
        ("counting.py", "Document(f", "(f", "[*brought_documents('counting')]", "TypeError"),
        (
            "counting.py",
            'Document(f"document {number}"',
            "Document(number",
            "[*brought_documents('counting')]",
            "TypeError",
        ),
    ],
)
def test_what_raises_is_told_as_of_its_package(own, tmp_path, name, there, instead, does, kind):
    """Also where none of its own code is running at the time."""
    if not kind:
        edit(tmp_path, "branch.py", "section:SECTION", "section:draw")
        assert "it is no Section" in python(own, RAISES % does)
        return
    edit(tmp_path, name, there, instead)
    assert f"most likely a defect of the package ffkv-toy 1.0: {kind}: " in python(own, RAISES % does)


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
    ):
        edit(tmp_path, "summarize.py", there, instead)
        told = ffkv(own, *command)
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


def test_of_two_packages_with_one_name_neither_is_taken(own, tmp_path):
    for name in ("first", "second"):
        folder = tmp_path / f"site/{name}-2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2\n")
        (folder / "entry_points.txt").write_text("[ffkv.formats]\nnames = ffkv_toy.names:FORMAT\n")
    assert "several packages bring it (ffkv-toy 1.0, first 2, second 2)" in python(own, FIND)


def test_a_damaged_list_of_entry_points_is_named(own, tmp_path):
    """Libraries that ffkv needs fail on it, too."""
    names = next((tmp_path / "site").glob("ffkv_toy-*.dist-info/entry_points.txt"))
    names.write_text("[ffkv.branches]\nno equals sign\n")
    told = ffkv(own, "-h")
    assert told.returncode == 1 and len(told.stderr.strip().splitlines()) == 1
    assert f"{tmp_path}/site: entry_points.txt of the installed package ffkv-toy is damaged" in told.stderr
