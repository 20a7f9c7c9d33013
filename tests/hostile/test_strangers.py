"""Results that a stranger made: they run no code, lead nowhere else, and ask a person for all that only a person can allow."""

import json
import os
import re
import shutil
import socket
import stat
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hostile.test_pickles import code
from hostile.test_pickles import marker as marker
from small_runs import write_run
from support import edit_json, refused

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.options import command_line
from ffkv.base.steps import Work
from ffkv.branches.settings import Settings
from ffkv.cli import ffkv as commands
from ffkv.run.results.check import check_run
from ffkv.run.results.collect import collect
from ffkv.workflow.jobs import STEPS
from ffkv_explorer.shelf import open_shelf
from tests.run.export.conftest import complete

pytestmark = pytest.mark.usefixtures("own_cache")
ASKS = r"model/anatomy\.json asks to run Python code that .* brings.*--trust-remote-code.*trust_remote_code=True"


@pytest.fixture(scope="module")
def honest(checkpoints, tmp_path_factory):
    """A run of a tiny model, for tests to copy."""
    results = tmp_path_factory.mktemp("project") / "results"
    results.mkdir()
    return write_run(results / "tiny", checkpoints("gpt2"), "auto", "float32")


@pytest.fixture
def folder(honest, tmp_path) -> Path:
    """A copy of the run that a test may spoil."""
    return Path(shutil.copytree(honest, tmp_path / "results" / "tiny"))


@pytest.fixture
def with_code(folder, marker) -> Path:
    """The run, whose model folder brings code for its tokenizer, and whose anatomy says that the code is trusted."""
    complete(folder)  # else an export says what the run lacks, before it asks for the model
    (folder / "model" / "own.py").write_text(code(marker))
    own = {"AutoTokenizer": [None, "own.Tokenizer"]}
    edit_json(folder / "model" / "tokenizer_config.json", auto_map=own, tokenizer_class="Tokenizer")
    edit_json(folder / "model" / "anatomy.json", trust_remote_code=True)
    return folder


def prompts_of(folder: Path) -> Path:
    path = folder.parent / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"clean": f"w{n} w1", "patch": f"w{n} w2"}) for n in range(20)))
    return path


COMMANDS = {
    "trace": lambda run: ["w1 w2"],
    "generate": lambda run: ["w1 w2"],
    "graph": lambda run: ["w1 w2"],
    "causes": lambda run: [prompts_of(run)],
    "export": lambda run: ["--format", "neuronpedia", "--output", run.parent / "out"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_finished_run_runs_code_only_if_the_command_line_allows_it(with_code, marker, command):
    given = [command, str(with_code), *map(str, COMMANDS[command](with_code)), "--device", "cpu"]
    told = CliRunner().invoke(commands, given)
    assert isinstance(told.exception, UserError)
    assert re.search(ASKS, str(told.exception)), told.exception


def test_code_runs_if_the_person_allows_it(with_code, marker):
    with refused(ASKS):
        ffkv.open(with_code).model("cpu")
    assert not marker.exists()
    model = ffkv.open(with_code, trust_remote_code=True).model("cpu")
    with refused("cannot be loaded"):  # a class with nothing in it is no tokenizer
        _ = model.tokenizer
    assert marker.exists()
    marker.unlink()


def test_the_explorer_and_the_readers_of_a_model_run_no_code(with_code):
    (held,) = open_shelf([with_code]).runs.values()
    for read in (
        held.run.model,
        lambda: ffkv.load_head(with_code / "model"),
        lambda: ffkv.load_model(with_code / "model"),
    ):
        with refused(ASKS):
            read()


def test_the_steps_of_the_workflow_take_trust_from_the_settings_of_whoever_runs_them(with_code, tmp_path):
    model, train = with_code / "model", with_code / "corpus" / "train.h5"
    for step in (
        lambda: ffkv.find_triggers(model, train, work=Work("cpu")),
        lambda: ffkv.encode_corpus(
            model, "train", ffkv.settings.Corpus(dataset="embedded", limit=1), tmp_path / "train.h5"
        ),
    ):
        with refused(ASKS):
            step()
    settings = Settings().model_dump()
    for name, step in STEPS.items():
        told = command_line(settings, *step.tracked)
        assert ("model" in step.settings and name) or ("--no-trust-remote-code" in told) == (
            "model/trust_remote_code" in step.settings
        )


def test_a_run_whose_model_needs_no_code_runs_none_though_a_person_allows_it(with_code, marker):
    edit_json(with_code / "model" / "anatomy.json", trust_remote_code=False)
    run = ffkv.open(with_code, trust_remote_code=True)
    assert run.model("cpu").tokenizer.is_fast


def test_the_config_of_a_head_runs_no_code_and_asks_nobody(folder, marker, monkeypatch):
    (folder / "model" / "own.py").write_text(code(marker))
    own = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    edit_json(folder / "model" / "config.json", auto_map=own, model_type="never-heard-of")
    edit_json(folder / "model" / "anatomy.json", head_chain=[])
    monkeypatch.setattr("builtins.input", lambda text: pytest.fail("a person was asked"))
    with refused(r"model cannot be read|is not what ffkv wrote"):
        ffkv.load_head(folder / "model", "cpu")


def test_check_names_what_asks_for_trust(with_code):
    settings = json.loads((with_code / "settings.json").read_text())
    settings["annotation"]["folder"] = "/etc"
    (with_code / "settings.json").write_text(json.dumps(settings))
    asked = {problem.path.name: problem.reason for problem in check_run(with_code)[1] if problem.kind == "trust"}
    assert set(asked) == {"anatomy.json", "settings.json"}
    assert "asks to run Python code" in asked["anatomy.json"]
    assert "/etc" in asked["settings.json"]


# Links, pipes, and folders elsewhere


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "link", "folder"])
@pytest.mark.parametrize("name", ["settings.json", "triggers.h5", "model"])
def test_what_is_no_file_of_the_run_is_refused_at_once_and_named(folder, tmp_path, kind, name):
    place, outside = folder / name, tmp_path / "outside"
    shutil.move(place, outside)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            short = Path(tempfile.mkdtemp(dir="/tmp")) / "s"
            listener.bind(str(short))
            shutil.move(short, place)
    elif kind == "device":
        try:
            os.mknod(place, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # as /dev/zero, which never ends
        except PermissionError:
            pytest.skip("only root makes devices")
    elif kind == "link":
        place.symlink_to(outside)
    else:
        place.symlink_to(outside.parent)
    with refused(rf"{name}.* is a (pipe|link)"):
        ffkv.open(folder)
    problems = {problem.path: problem for problem in check_run(folder)[1]}
    assert re.search("is a (pipe|link)", problems[place].reason)


def test_links_inside_a_run_and_to_a_run_are_followed(folder, tmp_path):
    """A folder of results on another disk is a person's own; a link that stays in the run leads nowhere else."""
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.move(folder.parent, tmp_path / "elsewhere" / "results")
    folder.parent.symlink_to(moved)
    shutil.move(folder / "triggers.h5", folder / "kept.h5")
    (folder / "triggers.h5").symlink_to("kept.h5")
    with ffkv.open(folder).files.open_triggers() as file:
        assert len(file["coefficient"])


@pytest.mark.parametrize("where", ["/etc", "..", "../outside", "annotations/../.."])
def test_a_run_does_not_choose_where_annotations_are(folder, tmp_path, where):
    settings = json.loads((folder / "settings.json").read_text())
    settings["annotation"]["folder"] = where
    (folder / "settings.json").write_text(json.dumps(settings))
    before = {*tmp_path.rglob("*")}
    for does in (
        lambda: collect(ffkv.open(folder), "starred", ["L0.1"]),
        lambda: open_shelf([folder]),
        lambda: ffkv.collections(ffkv.open(folder)),
    ):
        with refused(rf"names {re.escape(where)} as the folder of annotations.*--annotations"):
            does()
    assert {*tmp_path.rglob("*")} == before
    own = tmp_path / "own"
    told = CliRunner().invoke(commands, ["collect", str(folder), "starred", "L0.1", "--annotations", str(own)])
    assert told.exit_code == 0, told.output
    assert [*own.rglob("*.jsonl")]


@pytest.mark.parametrize("name", ["annotations", "annotations/tiny", "annotations/tiny/collections"])
def test_a_link_does_not_lead_annotations_elsewhere(folder, tmp_path, name):
    (tmp_path / "outside").mkdir()
    link = tmp_path / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(tmp_path / "outside")
    with refused(r"is a link|leads to .*outside"):
        collect(ffkv.open(folder), "starred", ["L0.1"])
    assert not [*(tmp_path / "outside").iterdir()]


def test_patterns_that_are_sought_are_not_written_through_a_link(folder, tmp_path):
    (tmp_path / "outside").mkdir()
    (folder.parent / ".tiny.sought").symlink_to(tmp_path / "outside")
    with refused("is a link"):
        ffkv.open(folder).memory("L0.1").seek_patterns()
    assert not [*(tmp_path / "outside").iterdir()]
