"""A package of a stranger is installed beside ffkv: a branch, an export format, a command, a reader and a corpus."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forks import with_forks
from support import OFFLINE, random_checkpoint, settings_file, snakemake

from ffkv.base.doors import ALONE

TOY = Path(__file__).with_name("toy")


def finding(site: Path) -> dict[str, str]:
    """The environment of processes that find what is installed in a folder."""
    path = os.pathsep.join([str(site), OFFLINE.get("PYTHONPATH", "")])
    commands = os.pathsep.join([str(Path(sys.executable).parent), OFFLINE["PATH"]])
    return {name: value for name, value in OFFLINE.items() if name != ALONE} | {"PYTHONPATH": path, "PATH": commands}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The folder into which the package is installed."""
    folder = tmp_path_factory.mktemp("toy")
    copy = shutil.copytree(TOY, folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", folder / "site", copy], check=True)
    return folder / "site"


@pytest.fixture
def own(site, tmp_path) -> dict[str, str]:
    """The environment of processes that find the package in `tmp_path / "site"`, where a test may change it."""
    return finding(shutil.copytree(site, tmp_path / "site"))


@pytest.fixture(scope="module")
def without() -> dict[str, str]:
    """The environment of commands that do not find the package: forks, see `forks`."""
    return with_forks(OFFLINE)


@pytest.fixture(scope="module")
def of_others(without) -> str:
    """The codes of all rules without the package, see `CODE`."""
    return python(without, CODE)


@pytest.fixture(scope="module")
def beside(without, site) -> dict[str, str]:
    """The environment of commands that find the package: forks of a process of their own."""
    return with_forks(finding(site))


def ffkv(environment: dict[str, str], *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(["ffkv", *arguments], capture_output=True, text=True, env=environment, cwd=folder)


def edit(folder: Path, name: str, there: str, instead: str) -> None:
    """Changes a file of the package in `folder / "site"`."""
    file = folder / "site/ffkv_toy" / name
    text = file.read_text()
    assert there in text
    file.write_text(text.replace(there, instead))


def python(environment: dict[str, str], code: str, folder: Path | None = None, *words: str) -> str:
    command = [shutil.which("python-code", path=environment["PATH"]) or sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_help_lists_its_commands(beside, without):
    said = ffkv(beside, "-h").stdout
    assert "Toys:\n  count" in said
    assert said.index("  behaviours ") < said.index("  lengths ") < said.index("  write-settings ")
    assert "  lengths " not in ffkv(without, "-h").stdout


def test_its_settings_are_checked_as_all_others(beside, without, site, tmp_path):
    file = settings_file(tmp_path, lengths={"quantile": 2.0})
    assert "lengths.quantile" in ffkv(beside, "settings", "--check", str(file)).stderr
    assert ffkv(beside, "settings", "--show", "lengths").stdout == (
        "# How long the values of a layer are.\nlengths:\n"
        "  # Quantile of the lengths of a layer's values that is shown. 0.5 is the median.\n  quantile: 0.5\n"
    )
    alone = ffkv({**finding(site), ALONE: "1"}, "settings", "--show", "lengths")
    assert alone.returncode == 2 and "lengths" in alone.stderr
    file = settings_file(tmp_path, lengths={"quantile": 0.9})
    assert ffkv(beside, "settings", "--check", str(file)).returncode == 0
    assert "lengths" in ffkv(without, "settings", "--check", str(file)).stderr


# The code of each rule, as it is, and after an edit of each file that is named; nothing is kept from one to the next.
CODE = """
import json, os, sys
from ffkv.workflow.jobs import STEPS
for path in ["", *sys.argv[1:]]:
    if path:
        with open(path, "a") as file:
            file.write("# edited\\n")
    if os.fork() == 0:
        print(json.dumps({name: step.code for name, step in STEPS.items()}), flush=True)
        os._exit(0)
    os.wait()
"""


def test_its_rules_count_with_its_own_code(own, of_others, tmp_path):
    """A change of the package repeats its rule alone, or reports; without it, all rules but these have the same code."""
    mine, reports = {"lengths_summarize"}, {"report", "comparison_measure", "comparison_report"}
    edits = {"tables.py": mine, "settings.py": mine, "section.py": reports, "linked.py": set(), "names.py": set()}
    files = [str(tmp_path / "site/ffkv_toy" / name) for name in edits]
    codes = [json.loads(line) for line in python(own, CODE, None, *files).splitlines()]
    alone = json.loads(of_others)
    assert codes[0] == alone | {rule: codes[0][rule] for rule in mine | reports}
    for before, after, repeated in zip(codes, codes[1:], edits.values(), strict=False):
        assert {rule for rule in after if after[rule] != before[rule]} == repeated
    assert len(codes) == 1 + len(edits)


BESIDE = """
from ffkv.branches.settings import Settings
from ffkv.workflow.inputs import code_beside
settings = Settings(model={"checkpoint": %r}, corpus={"dataset": %r})
print([code_beside(what, settings) for what in ("checkpoint", "corpus")])
"""


def test_the_code_that_reads_counts_in_the_runs_that_need_it(own, tmp_path):
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/link.txt").touch()
    needs, needs_not = BESIDE % (str(tmp_path / "linked"), "counting"), BESIDE % ("embedded", "theirs/text")
    before = python(own, needs)
    for name in ("linked.py", "counting.py"):
        with (tmp_path / "site/ffkv_toy" / name).open("a") as file:
            file.write("# edited\n")
    assert python(own, needs) != before != "['', '']" == python(own, needs_not)


def test_its_reader_reads_checkpoints(beside, without, tmp_path):
    random_checkpoint(tmp_path / "gpt2", "gpt2")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/link.txt").write_text("gpt2")
    plain, linked = (ffkv(beside, "inspect", "--checkpoint", str(tmp_path / name)) for name in ("gpt2", "linked"))
    assert linked.returncode == 0, linked.stderr
    assert linked.stdout == plain.stdout.replace(str(tmp_path / "gpt2"), str(tmp_path / "linked"))
    refused = ffkv(without, "inspect", "--checkpoint", str(tmp_path / "linked")).stderr
    assert "neither config.json (transformers) nor model.pt and dict.txt (fairseq)." in refused
    (tmp_path / "linked/link.txt").unlink()
    assert "nor link.txt (toy)" in ffkv(beside, "inspect", "--checkpoint", str(tmp_path / "linked")).stderr


READ = """
from ffkv.base.settings import Corpus
from ffkv.corpus.sources import read_documents
print([sum(1 for each in read_documents(Corpus(dataset="counting"), split)) for split in ("train", "validation")])
"""


def test_its_corpus_has_both_splits(beside):
    train, validation = json.loads(python(beside, READ))
    assert train + validation == 20 and train > validation > 0


EXPLORE = """
from pathlib import Path
from starlette.testclient import TestClient
from ffkv_explorer.application import create_application
from ffkv_explorer.security import Guard
from ffkv_explorer.shelf import open_shelf
guard = Guard()
client = TestClient(create_application(open_shelf([Path(%r)]), guard), base_url="http://127.0.0.1")
client.get("/?token=" + guard.token)
page = client.get(guard.base + "/r/tiny/report").text
print(client.get(guard.base + "/r/tiny/figures/value_lengths.svg").status_code, "Lengths of values" in page)
"""


# The plan of what the branch adds, whose trial is of the branch's own rule alone.
PLAN = """
import shutil
from pathlib import Path
from ffkv.plan import step
from ffkv.plan.commands import plan
from ffkv.plan.trial import _run_job
def try_one(run, cores):
    (job,) = run.jobs["lengths_summarize"]
    cost = _run_job(job, Path())
    shutil.rmtree("results/tiny/lengths")
    return run, {job.rule: [cost]}
step.measure_trial = try_one
plan.main(["--json", "--configfile", %r], standalone_mode=False)
"""


@pytest.mark.workflow
def test_a_run_has_the_branch_in_its_plan_rules_report_explorer_and_exports(beside, tiny, tmp_path):
    """Of a run that was finished before, only what the branch adds is made."""
    folder = shutil.copytree(tiny, tmp_path / "copy", symlinks=True)
    run, file = folder / "results/tiny", settings_file(tmp_path, lengths={"quantile": 0.9})
    plan = json.loads(python(beside, PLAN % str(file), folder))
    (todo,) = (rule for rule in plan["runs"]["tiny"]["rules"] if not rule["done"])
    assert todo["rule"] == "lengths_summarize" and min(todo["seconds"], todo["memory"], todo["written"]) > 0
    assert plan["not_estimated"] == ["report", "write_settings"]
    done = snakemake(folder, file, environment=beside)
    assert done.returncode == 0, done.stderr[-4000:]
    assert (run / "lengths/value_lengths.csv").read_text().startswith("layer,memories,length\n")
    page = (folder / "reports/tiny/index.html").read_text()
    assert "Lengths of values" in page and "Largest length of a layer" in page
    assert ffkv(beside, "check", str(run)).returncode == 0
    assert ffkv(beside, "count", str(run)).stdout == "256\n"
    options = ["--format", "names", "--memories", "L1.3", "--output", "out"]
    exported = ffkv(beside, "export", str(run), *options, folder=folder)
    assert exported.returncode == 0, exported.stderr
    assert json.loads((folder / "out/1.json").read_text()) == ["L1.3"]
    assert python(beside, EXPLORE % str(run)) == "200 True"
    # Without the package, all else of the run is there.
    checked = ffkv(OFFLINE, "check", str(run))
    assert checked.returncode == 0 and "all are whole" in checked.stdout
    assert f"{run}/lengths is left out: its branch is of a package" in checked.stderr
    (run / "lengths").rename(run / "elsewhere")
    assert "Unknown setting 'lengths'" in ffkv(OFFLINE, "check", str(run)).stdout


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


WEIGHTS = '''

    weights: str = ""
    """File with weights."""


def weight_files(settings: Lengths, read: bool = False) -> list[str]:
    if read and settings.weights == "damaged.txt":
        raise UserError("damaged.txt is damaged.")
    return [settings.weights] if len(settings.weights) != 1 else [][0]
'''


@pytest.mark.workflow
def test_files_that_its_settings_name_are_looked_for_and_read_by_its_rule(own, tmp_path):
    edit(tmp_path, "branch.py", "section=", 'local_files="ffkv_toy.settings:weight_files",\n    section=')
    edit(
        tmp_path,
        "settings.py",
        "\nfrom ffkv.base.settings",
        "\nfrom ffkv.base.errors import UserError\nfrom ffkv.base.settings",
    )
    with (tmp_path / "site/ffkv_toy/settings.py").open("a") as file:
        file.write(WEIGHTS)
    edit(tmp_path, "rules.smk", "    input:\n", '    input:\n        runs.files("lengths"),\n')
    edit(tmp_path, "rules.smk", "    params:\n", '    params:\n        content=runs.content("lengths"),\n')
    for name in ("damaged.txt", "weights.txt"):
        (tmp_path / name).write_text("1 2")
    for name, told in (
        ("damaged.txt", "damaged.txt is damaged."),
        ("w", "ffkv_toy.settings:weight_files fails, which finds files of the branch lengths: IndexError("),
        ("weights.txt", ""),
    ):
        file = settings_file(tmp_path, lengths={"weights": name})
        checked = ffkv(own, "settings", str(file), folder=tmp_path)
        done = snakemake(tmp_path, file, "-n", environment=own)
        assert bool(checked.returncode) == bool(done.returncode) == bool(told), done.stderr
        assert told in checked.stderr and told in done.stderr and "Traceback" not in checked.stderr + done.stderr
    (tmp_path / "weights.txt").unlink()
    done = snakemake(tmp_path, file, "-n", environment=own)
    assert "Missing input files for rule lengths_summarize" in done.stdout + done.stderr


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
