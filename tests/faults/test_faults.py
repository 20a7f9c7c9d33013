"""Each call of the system that a command makes fails once: what is said, what is left, and what the same command then makes.

`FFKV_FAULTS` says how many calls are tried of each command, over all kinds of faults; 0 for all, `places` for one of each kind and
of each function on each path. `FFKV_SEED` says which.
`FFKV_FAULT` tries a single one again: what went wrong says how. `FFKV_FAULT=:allocation` tries one kind of fault.
"""

import bz2
import gzip
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
import zstandard
from peft import LoraConfig, get_peft_model
from support import ROOT, snakemake
from transformers import AutoModelForCausalLM

from ffkv.run.export.settings import FORMATS
from ffkv.workflow.jobs import Job, ask_snakemake, read_jobs
from tests.base.hub.conftest import hub as hub
from tests.base.hub.conftest import model_folders as model_folders
from tests.base.hub.conftest import port as port
from tests.base.hub.contents import parquet_dataset, sentences
from tests.ffkv_gguf.gguf_files import tiny_llama, write_gguf
from tests.ffkv_machines.conftest import stub as stub

LINES = "\n".join(f"Text {number} says what people do." for number in range(30))
DUMP = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" xml:lang="en"><page><title>A</title><ns>0</ns><id>1</id>'
    f"<revision><id>2</id><text>{'This is an article about something. ' * 9}</text></revision></page></mediawiki>"
)


def write(place: Path, contents: dict[str, bytes]) -> None:
    """Writes files, by their paths in a folder."""
    for name, content in contents.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)


def leave_a_killed_run(place: Path) -> None:
    """Two unfinished outputs, a whole one, and the lock of a Snakemake that is no more."""
    owner = {"host": socket.gethostname(), "pid": 999_999_999, "local": True}
    names = ("triggers/.0.h5.node1.4711.partial", ".model.node1.4712.partial/anatomy.json", "values.h5")
    write(place, {f"results/tiny/{name}": b"text" for name in names})
    write(place, {".snakemake/locks/0.input.lock": b"text", ".snakemake/ffkv_owner.json": json.dumps(owner).encode()})


def write_texts(place: Path, model: Path) -> None:
    """A text of each kind, in folders in each other and behind a link, beside a model/ that reads them."""
    shutil.copytree(model, place / "model")
    rows = pd.DataFrame({"text": LINES.replace("do", "see").splitlines()})
    contents = {
        "texts/one/a.txt": LINES.encode(),
        "texts/one/b.txt.gz": gzip.compress(LINES.replace("do", "say").encode()),
        "texts/two/c.jsonl.zst": zstandard.compress(rows.to_json(orient="records", lines=True).encode()),
        "texts/two/d.csv": rows.replace("see", "mean", regex=True).to_csv().encode(),
        "texts/two/deep/e.parquet": rows.replace("see", "eat", regex=True).to_parquet(),
        "texts/two/deep/f.xml.bz2": bz2.compress(DUMP.encode()),
        "elsewhere/g.txt": LINES.replace("do", "hear").encode(),
    }
    write(place, contents)
    (place / "texts/three").symlink_to("../elsewhere")


def write_adapter(place: Path, base: Path) -> None:
    """A model in several files, and an adapter of it."""
    shutil.copytree(base, place / "base")
    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["up_proj"], init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(place / "adapter")


def write_gguf_file(place: Path) -> None:
    """A quantised model in one file."""
    (place / "files").mkdir(parents=True)
    write_gguf(place / "files/tiny.gguf", *tiny_llama(), "Q8_0")


HERE = Path(__file__).parent
PLACES = f"{ROOT}/src:{ROOT}/tests"
PROMPTS = str(ROOT / "configs/prompts/documentation.jsonl")
BEHAVIOUR = {"candidates": 3, "controls": 4, "directions": 1, "effect_prompts": 8, "sets": [1, 5], "random_sets": 1}
CASES = os.environ.get("FFKV_FAULTS", "3")  # calls of each command that fail
SEED = os.environ.get("FFKV_SEED", "12")  # which
PARTS = 1 if CASES not in ("0", "places") else 4  # of the steps, for processes side by side in `make test-faults`
# Commands of people, by the name of a test.
COMMANDS = {
    "init": "ffkv init new",
    "check": "ffkv check results/tiny",
    "pages": "ffkv explore --export out results/tiny",
    "sheets": "ffkv annotate sheets results/tiny --annotators ada --annotations sheets",
    "csv": "ffkv annotate write-csv results/tiny --annotations judged --sheet keys --annotator ada --output ada.csv",
    "import": "ffkv annotate import results/tiny filled.csv --annotations judged --sheet changes --annotator ada",
    "agreement": "ffkv annotate agreement --results results/tiny --annotations judged --output annotation",
    "collect": "ffkv collect results/tiny starred L0.3-5",
    "collections": "ffkv collections results/tiny",
    "inspect": "ffkv inspect --checkpoint results/tiny/checkpoint",
    "trace": "ffkv trace results/tiny 'the function'",
    "graph": "ffkv graph results/tiny 'the function'",
    "causes": f"ffkv causes results/tiny {PROMPTS} --minimum-accuracy 0 --candidates 2 --controls 2 --directions 1 --sets 1"
    " --random-sets 1 --output asked",
    "generate": "ffkv generate results/tiny 'the function' --tokens 3",
    **{name: f"ffkv export results/tiny --format {name} --examples 2 --output out" for name in FORMATS},
}
# Commands that read from the hub.
DOWNLOADS = {
    "model": "ffkv model --checkpoint someone/tiny --output model --output-values values.h5",
    "rows": "ffkv corpus --model model --split train --dataset someone/words --output train.h5",
}


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    """The library that makes calls fail."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or not compiler:
        pytest.skip("the library that makes calls fail needs Linux and a C compiler, cc")
    path = tmp_path_factory.mktemp("library") / "faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-Wall", "-o", path, HERE / "library.c"], check=True)
    return path


@pytest.fixture(scope="session")
def settings(tmp_path_factory) -> Path:
    """configs/tiny.yaml, shorter, with an untrained control, a behaviour, a concept and a comparison."""
    config = yaml.safe_load((ROOT / "configs/tiny.yaml").read_text())
    config["embedded"]["steps"] = 3
    config["report"]["control"] = "auto"
    config["behaviours"] = {"number": {"prompts": PROMPTS, "minimum_accuracy": 0, **BEHAVIOUR}}
    config["comparisons"] = {"both": {"runs": ["tiny", "tiny-untrained"]}}
    path = tmp_path_factory.mktemp("settings") / "settings.yaml"
    labels = path.with_name("labels.csv")
    labels.write_text(
        "text,label\n" + "".join(f"a name {n} {what},{what}\n" for n in range(20) for what in ("is", "has"))
    )
    config["concepts"] = {"verbs": {"labels": str(labels), "texts": 40, "sizes": [1], "shuffles": 19, "draws": 20}}
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="session")
def run(settings, tmp_path_factory) -> Path:
    """A folder in which all steps were run, and nothing was deleted."""
    folder = tmp_path_factory.mktemp("run")
    done = snakemake(folder, settings, "--notemp")
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def copy(run: Path, folder: Path) -> Path:
    return shutil.copytree(run, folder, symlinks=True, ignore=shutil.ignore_patterns(".snakemake*"))


def without_outputs(run: Path, folder: Path, outputs: list[str]) -> Path:
    """A copy of a run as it is before a job."""
    copy(run, folder)
    for output in outputs:
        path = folder / output
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        path.with_name(f".{path.name}.sha256").unlink(missing_ok=True)
        shutil.rmtree(path.with_suffix(".blocks"), ignore_errors=True)
    return folder


def command_of(job: Job) -> str:
    """The command of a job, without where its output goes."""
    return " ".join(job.command.replace("\\\n", " ").split(">")[0].split())


def steps(run: Path, settings: Path, folder: Path) -> list[tuple[str, str, str]]:
    """One job of each rule: its name, a folder in which it can run, and its command."""
    found = {}
    for job in read_jobs(ask_snakemake(settings, 2, run)):
        if job.command.strip() and job.rule not in found:
            place = without_outputs(run, folder / job.rule, job.outputs)
            found[job.rule] = (job.rule, str(place), command_of(job))
    return list(found.values())


@pytest.fixture
def faults(library, request) -> Callable[..., None]:
    """Runs the fault loop."""

    def go(jobs: list[tuple[str, str, str]], **more: str) -> None:
        """Says what went wrong. more: variables of the loop's environment."""
        name, _, case = os.environ.get("FFKV_FAULT", "").partition(":")
        jobs = [job for job in jobs if name in ("", job[0])]
        if not jobs:
            pytest.skip(f"FFKV_FAULT names {name}, which is not among these commands")
        lines = run_loop(library, jobs, [CASES, SEED, case], more)
        assert {line["job"] for line in lines if line.get("tried")} == {job[0] for job in jobs}
        tried = sum(line.get("tried", 0) for line in lines)
        about = (
            f"{request.node.name}: {tried} calls of {len(jobs)} commands failed, one after the other; FFKV_SEED={SEED}"
        )
        request.node.user_properties.append(("failures", about))
        again = f"FFKV_FAULTS={CASES} FFKV_FAULT='{{job}}:{{fault}}:{{number}}' pytest -m '' '{request.node.nodeid}'"
        wrong = [{**line, "again": again.format_map(line)} for line in lines if "problem" in line]
        assert not wrong, "\n\n".join("\n".join(f"{key}: {value}" for key, value in line.items()) for line in wrong)

    return go


def run_loop(library: Path, jobs: list[tuple[str, str, str]], options: list[str], more: dict[str, str]) -> list[dict]:
    """Runs `loop.py`. What it said."""
    command = [sys.executable, "-m", "faults.loop", library, *options]
    environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": PLACES, "HF_HUB_OFFLINE": "1", **more}
    found = library.with_name(f"{jobs[0][0]}.jsonl")  # grows while the loop runs
    with found.open("w") as output:
        subprocess.run(command, input=json.dumps(jobs), env=environment, text=True, stdout=output, check=True)
    return [json.loads(line) for line in found.read_text().splitlines()]


def run_attempts(module: str, library: Path, folder: Path) -> list[dict]:
    """Runs a program that lets calls of one function fail. What it said of each."""
    environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": PLACES}
    command = [sys.executable, "-m", module, library, folder]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_journal_loses_nothing_that_it_promised(library, tmp_path):
    """A torn line is left out; what was appended before and afterwards stays."""
    tried = run_attempts("faults.journal", library, tmp_path)
    assert {line["fault"] for line in tried if line["number"]} >= {"full disk", "quota", "bad disk", "kill", "short"}
    assert [line for line in tried if line["wrong"]] == []


@pytest.mark.many
def test_a_file_of_hdf5_is_whole_or_not_there(library, tmp_path):
    """HDF5 writes what it holds of a dataset when h5py gives the dataset back, where no error can be raised."""
    tried = run_attempts("faults.dataset", library, tmp_path)
    assert sum(line["code"] == 1 for line in tried) > 10
    assert [line for line in tried if (line["code"] == 0) != line["there"] or line["there"] != line["whole"]] == []


@pytest.mark.faults
@pytest.mark.parametrize("part", range(PARTS))
def test_every_step(faults, run, settings, tmp_path, part):
    faults(steps(run, settings, tmp_path)[part::PARTS])


@pytest.mark.faults
def test_outputs_that_are_there_already_stay(faults, run, settings, tmp_path):
    jobs = read_jobs(ask_snakemake(settings, 2, run))
    chosen = {job.rule: command_of(job) for job in reversed(jobs) if job.rule in ("model", "values_project")}
    jobs = [(rule, str(copy(run, tmp_path / rule)), command) for rule, command in chosen.items()]
    faults(jobs)


@pytest.mark.faults
def test_every_command_of_a_person(faults, run, tmp_path):
    make = ["ffkv", "annotate", "sheets", "results/tiny", "--annotators", "ada", "--annotations", "judged"]
    subprocess.run(make, cwd=run, check=True, capture_output=True)
    subprocess.run(["ffkv", "collect", "results/tiny", "noted", "L1.3-5"], cwd=run, check=True, capture_output=True)
    sheet = (run / "judged/csv/changes.ada.csv").read_text(encoding="utf-8-sig")
    (run / "filled.csv").write_text(re.sub(r",$", ",yes", sheet, flags=re.M), newline="")
    jobs = [(name, str(copy(run, tmp_path / name)), command) for name, command in COMMANDS.items()]
    faults(jobs)


@pytest.mark.faults
def test_commands_that_read_what_people_bring(faults, run, model_folders, stub, tmp_path):
    machine = (
        f"ffkv annotate machine results/tiny --annotations machine --model judge --endpoint {stub().address}"
        " --per-layer 1 --pairs 2 --tries 1"
    )
    jobs = {
        "recover": (leave_a_killed_run, "ffkv recover --cancel"),
        "texts": (
            partial(write_texts, model=run / "results/tiny/model"),
            "ffkv corpus --model model --split train --dataset files --train 'texts/t*/**' --train 'texts/on?/*.[tx]*'"
            " --output train.h5",
        ),
        "adapter": (
            partial(write_adapter, base=model_folders(form="sharded")),
            "ffkv model --checkpoint base --adapter adapter --output model --output-values values.h5",
        ),
        "unpack": (write_gguf_file, "ffkv unpack --checkpoint files --gguf tiny.gguf --output checkpoint"),
        "machine": (partial(copy, run), machine),
    }
    for name, (make, _) in jobs.items():
        make(tmp_path / name)
    faults([(name, str(tmp_path / name), command) for name, (_, command) in jobs.items()])


@pytest.mark.faults
@pytest.mark.parametrize("name", DOWNLOADS)
def test_downloads(faults, run, hub, model_folders, tmp_path, name):
    hub.model("someone/tiny").push_folder(model_folders())
    hub.dataset("someone/words").push(parquet_dataset({"default": {"train": sentences(60)}}, count=2))
    place = tmp_path / "place"
    place.mkdir()
    if name == "rows":
        shutil.copytree(run / "results/tiny/model", place / "model")
    own = hub.environment(place / "cache", HF_HUB_OFFLINE="0")
    faults([(f"download_{name}", str(place), DOWNLOADS[name])], **own)
