"""A package of a stranger is installed beside ffkv: a branch, an export format, a command, a reader and a corpus."""

import json
import shutil

import pytest
from support import OFFLINE, random_checkpoint, settings_file, snakemake

from ffkv.base.doors import ALONE
from tests.plugins.conftest import BESIDE, CODE, edit, ffkv, finding, python


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
    assert done.returncode == 0 and "The page lacks" not in done.stderr, done.stderr[-4000:]
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


@pytest.mark.workflow
def test_a_run_whose_figure_fails_is_finished_and_says_so_at_its_end(own, tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "copy", symlinks=True)
    edit(tmp_path, "section.py", "drawing.canvas()", "drawing.no_canvas()")
    done = snakemake(folder, settings_file(tmp_path, lengths={"quantile": 0.9}), environment=own)
    assert done.returncode == 0, done.stderr[-4000:]
    end = done.stderr[done.stderr.index("(100%) done") :]
    assert "The page lacks the figure value_lengths of 'lengths'. " in end and "package ffkv-toy 1.0" in end
    page = (folder / "reports/tiny/index.html").read_text()
    assert "The package ffkv-toy 1.0 cannot make the figure value_lengths" in page
    assert "Largest length of a layer" in page and "Figure 4." in page  # all else


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
        ("w", "ffkv_toy.settings:weight_files, which finds files of lengths, fails: IndexError("),
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
