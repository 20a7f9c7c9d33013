"""A crate: archives read it, its sums are right, and what cannot be packed is refused in a sentence."""

import errno
import hashlib
import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from rocrate.rocrate import ROCrate
from support import ROOT

import ffkv
from ffkv.base.errors import UserError
from ffkv.cli import ffkv as command
from ffkv.run.results.expected import expected_files
from ffkv.run.results.run_files import read_jobs
from ffkv_publishing.crate import Crate, _files_of, _name_inputs, write_crate

PEERS = Path(os.environ.get("FFKV_PEERS", ROOT / ".venv-peers")) / "bin/python"
LICENSE = "CC-BY-4.0"


@pytest.fixture(scope="module")
def packed(tiny, tmp_path_factory):
    """A crate of the run with its report, unpacked: its folder and its entities by their names."""
    place = tmp_path_factory.mktemp("crate")

    def times() -> list:  # beside the run lie notes, which other tests write meanwhile
        files = (path for folder in ("results/tiny", "reports/tiny") for path in (tiny / folder).rglob("*"))
        return sorted((path, path.stat().st_mtime_ns) for path in files)

    before = times()
    run = ffkv.open(tiny / "results/tiny")
    left_out = write_crate(run, place / "tiny.zip", LICENSE, tiny / "reports/tiny", ROOT / "CITATION.cff")
    assert before == times(), "the run was changed"
    with zipfile.ZipFile(place / "tiny.zip") as archive:
        archive.extractall(place / "tiny")
    assert left_out == 0
    return place / "tiny", {
        each["@id"]: each for each in json.loads((place / "tiny/ro-crate-metadata.json").read_text())["@graph"]
    }


def ids(value) -> list[str]:
    return [each["@id"] for each in (value if isinstance(value, list) else [value])]


def test_it_holds_every_file_of_the_run_with_its_sum(packed, tiny):
    folder, entities = packed
    files = {name: entity for name, entity in entities.items() if "sha256" in entity}
    assert {name for name in files if name.startswith("results/")} >= {
        f"results/tiny/{name}"
        for name in expected_files(ffkv.open(tiny / "results/tiny").settings)
        if (tiny / "results/tiny" / name).is_file()
    }
    assert {"reports/tiny/index.html", "reports/tiny/verdicts.csv", "reports/tiny/figures/figure_2.svg"} <= files.keys()
    for name, entity in files.items():
        content = (folder / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entity["sha256"] and int(entity["contentSize"]) == len(content)
        assert content == ((ROOT if name.startswith("workflow/") else tiny) / name).read_bytes()


def test_the_library_reads_it_and_finds_the_steps(packed):
    folder, _ = packed
    crate = ROCrate(folder)
    assert crate.mainEntity.id == "workflow/Snakefile" and crate.license == "https://spdx.org/licenses/CC-BY-4.0"
    assert [each.id for each in crate.mainEntity["softwareRequirements"]] == [
        "#ffkv",
        "#python",
        "#tokenizers",
        "#torch",
        "#transformers",
    ]
    steps = {each["name"] for each in crate.mainEntity["step"]}
    assert {"model", "corpus", "triggers", "keys_patterns", "values_project", "refinement_summarize"} <= steps


def test_every_job_says_what_it_read_wrote_and_took(packed, tiny):
    _, entities = packed
    jobs = {
        name: each for name, each in entities.items() if name.startswith("#job-") and each["@type"] == "CreateAction"
    }
    assert len(jobs) == len(read_jobs(tiny / "results/tiny", ffkv.open(tiny / "results/tiny").settings)) > 20
    summary = jobs["#job-refinement_summarize"]
    assert "results/tiny/refinement/figure_9_residual_agreement.csv" in ids(summary["result"])
    assert "results/tiny/refinement/by_prefix/0.parquet" in ids(summary["object"])
    assert ids(summary["instrument"]) == ["#ffkv-refinement-summarize"]
    assert ids(jobs["#job-corpus-train"]["result"]) == ["results/tiny/corpus/train.h5"]
    # The model that the run trained is no input of the run, and leads from one job to the next.
    (trained,) = (name for name in ids(jobs["#job-train"]["result"]) if name.endswith("model.safetensors"))
    assert trained in ids(jobs["#job-model"]["object"]) and "#checkpoint" not in entities
    assert "results/tiny/model/anatomy.json" in ids(jobs["#job-merge_sampled_prefixes"]["object"])
    for job in jobs.values():
        seconds, *_ = (entities[name] for name in ids(job["resourceUsage"]))
        assert seconds["name"] == "elapsedSeconds" and float(seconds["value"]) >= 0
        assert job["startTime"] <= job["endTime"]
    made = {name for job in jobs.values() for name in (ids(job["result"]) if job.get("result") else [])}
    tables = {name for name in entities if name.startswith("results/tiny/") and name.endswith((".csv", ".parquet"))}
    assert tables <= made, "a table that no job made"


def test_a_model_from_elsewhere_is_an_input_of_the_run(tiny):
    run, crate = ffkv.open(tiny / "results/tiny"), Crate(small=True)
    model = run.settings.model.model_copy(update={"checkpoint": "path/to/model"})
    run.settings = run.settings.model_copy(update={"model": model})
    _name_inputs(crate, run)
    assert crate.of["#checkpoint"][0]["version"] == run.anatomy.model_hash
    read, _ = _files_of(run, None, "model", "")
    assert read == ["#checkpoint", "checkpoint"]  # the latter if a GGUF file is unpacked


def test_the_agents_are_the_authors_of_the_citation_file(packed):
    _, entities = packed
    (agent,) = ids(entities["#run"]["agent"])
    assert entities[agent]["name"] == "The ffkv developers"
    assert ids(entities["./"]["mentions"])[0] == "#run"


def test_runcrate_reports_it(packed):
    if not PEERS.exists():
        pytest.skip(f"{PEERS} does not exist: make peers")
    code = "import sys; from runcrate.report import dump_crate_actions; dump_crate_actions(sys.argv[1])"
    told = subprocess.run([PEERS, "-c", code, packed[0]], capture_output=True, text=True, check=True).stdout
    assert told.count("action: ") > 20 and "results/tiny/refinement/figure_9_residual_agreement.csv" in told


def test_a_small_one_names_large_files_with_their_sums_alone(tiny, tmp_path):
    answer = CliRunner().invoke(
        command,
        ["crate", str(tiny / "results/tiny"), "--output", str(tmp_path / "small.zip"), "--small", "--license", LICENSE],
    )
    assert answer.exit_code == 0, answer.output
    with zipfile.ZipFile(tmp_path / "small.zip") as archive:
        names = archive.namelist()
        entities = {each["@id"]: each for each in json.loads(archive.read("ro-crate-metadata.json"))["@graph"]}
    assert not [name for name in names if name.endswith((".h5", ".safetensors"))]
    left = entities["#results/tiny/triggers.h5"]
    assert left["sha256"] == hashlib.sha256((tiny / "results/tiny/triggers.h5").read_bytes()).hexdigest()
    assert "agent" not in entities["#run"]


def test_a_wrong_place_or_citation_is_told_before_the_files_are_read(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(Crate, "add_files", lambda *_: pytest.fail("files are read"))
    run, citation = ffkv.open(tiny / "results/tiny"), tmp_path / "CITATION.cff"
    citation.write_text("authors: 3\n")
    with pytest.raises(UserError, match=r"is a folder\. Name the zip file, such as .*tiny\.crate\.zip"):
        write_crate(run, tmp_path, LICENSE)
    with pytest.raises(UserError, match="names no authors"):
        write_crate(run, tmp_path / "tiny.zip", LICENSE, citation=citation)


@pytest.mark.parametrize("way", ["unfinished", "damaged", "citation", "license", "full"])
def test_what_cannot_be_packed_is_refused_and_nothing_is_left(own_tiny, tmp_path, monkeypatch, way):
    results, citation = own_tiny / "results/tiny", None
    if way == "unfinished":
        (results / "values.h5").unlink()
    elif way == "damaged":
        path = results / "refinement/figure_9_residual_agreement.csv"
        content = path.read_bytes()
        path.unlink()  # other runs have the same file
        path.write_bytes(content.replace(b"0", b"1", 1))
    elif way == "citation":
        citation = tmp_path / "CITATION.cff"
        citation.write_text("authors: 3\n")
    elif way == "full":

        def fill(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(ROCrate, "write_zip", fill)
    told = {
        "unfinished": "is not finished: .*values.h5",
        "damaged": "figure_9_residual_agreement.csv",
        "citation": "names no authors",
        "license": "is no licence",
        "full": "does not fit",
    }
    with pytest.raises(UserError, match=told[way]):
        write_crate(
            ffkv.open(results), tmp_path / "out/crate.zip", "" if way == "license" else LICENSE, citation=citation
        )
    assert not [*tmp_path.glob("out/*")]
