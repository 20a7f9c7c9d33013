"""What tests of several rooms share."""

import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault(
    "OMP_WAIT_POLICY", "PASSIVE"
)  # before torch: tests run side by side, see `ffkv.base.process.runtime`

os.environ.setdefault("FFKV_ALONE", "1")  # what else is installed adds nothing
# Python keeps what it has compiled, as in the Makefile: else each process that a test starts would compile its libraries.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import hypothesis
import pytest
import torch
from filelock import FileLock
from forks import forks_of, share
from support import OFFLINE, ROOT, detector_checkpoint, draw_nothing, make_run, prove_into, random_checkpoint, tries

from ffkv.base.settings import Corpus
from ffkv.corpus.corpus_file import write_corpus as write_corpus_file
from ffkv.corpus.document import Document
from ffkv.corpus.encode import encode
from ffkv.model.anatomy import Anatomy, Layer, SecondMatrix, write_anatomy
from ffkv.model.checkpoint.load import LoadedModel, load
from ffkv.model.checkpoint.vocabulary import write_vocabulary
from ffkv.model.small import train_tokenizer
from tests.ffkv_fairseq.conftest import write_checkpoint as write_checkpoint

HUB = "tests/base/hub/"
gc.disable()  # until all tests are collected: imports leave no garbage, and to look for it takes a third of their time
torch.set_num_threads(1)  # as in the jobs of runs: models this small lose by more, and tests run side by side
# Timings are no part of what a test promises: a busy machine is slow.
hypothesis.settings.register_profile("ffkv", deadline=None, max_examples=tries(100))
hypothesis.settings.load_profile("ffkv")


@pytest.hookimpl(optionalhook=True)  # without xdist there is none
def pytest_xdist_setupnodes(specs) -> None:
    """The processes that run tests are forks of the one that has the libraries of ffkv: each of them would import them again."""
    python = share(OFFLINE)
    for spec in specs:
        spec.python = str(python)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `--dist loadfile` the files of tests/base/hub go to one process, too: its forks know the hub, see `forks.with_forks`."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = super()._split_scope(nodeid)
            return HUB if path.startswith(HUB) else path

    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items) -> None:
    """Marks who asks for the run `tiny`, which Snakemake makes, and orders the tests.

    What `make test-failures` alone tries comes first, then whole runs, then what is slow: the last process to end should not
    begin with one.

    Of the files that share the run `tiny`, one makes it. The others come after whole runs of another kind, so that no process
    waits for it.
    """
    for item in items:
        if "tiny" in item.fixturenames:
            item.add_marker("workflow")
    sharing = [item.path for item in items if "workflow" in item.keywords and "tiny" in item.fixturenames]
    later = {*sharing} - {*sharing[:1]}
    marks = ("faults", "kills", "large", "workflow")

    def late(item) -> tuple[bool, ...]:
        return *(mark not in item.keywords for mark in marks), item.path in later, "slow" not in item.keywords

    items.sort(key=late)


def pytest_collection_finish() -> None:
    """Garbage is looked for again, but not among what was imported."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Folders of tiny random checkpoints, by kind, made when first asked for."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            made[kind] = random_checkpoint(tmp_path_factory.mktemp("checkpoint") / kind, kind)
        return made[kind]

    return get


@pytest.fixture(scope="session")
def proven(checkpoints, tmp_path_factory):
    """Model stage folders of tiny random checkpoints, by kind."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            made[kind] = prove_into(tmp_path_factory.mktemp(kind), checkpoints(kind))
        return made[kind]

    return get


@pytest.fixture
def load_kind(proven, write_checkpoint, tmp_path) -> Callable[[str], LoadedModel]:
    """Tiny random models of `support.LAYER_KINDS`, proven and loaded."""

    def get(kind: str) -> LoadedModel:
        if kind == "fairseq":
            torch.manual_seed(0)
            return load(prove_into(tmp_path / "stage", write_checkpoint(tmp_path / "checkpoint")), "cpu")
        return load(proven(kind), "cpu")

    return get


@pytest.fixture
def write_corpus(tmp_path):
    """Writes sentences (a document each) as a corpus file with the tokenizer of a model folder; returns its path."""

    def write(
        sentences: list[str],
        tokenizer,
        name: str = "corpus.h5",
        deduplicate: bool = True,
        bos: list[int] | None = None,
        **attributes,
    ) -> Path:
        documents = [Document(f"d{number}", sentence) for number, sentence in enumerate(sentences)]
        encoded = encode(documents, tokenizer, 31, Corpus(splitter="line", pretokenized=True, deduplicate=deduplicate))
        write_corpus_file(tmp_path / name, encoded, [0] if bos is None else bos, True, attributes)
        return tmp_path / name

    return write


@pytest.fixture(scope="session")
def detector(tmp_path_factory) -> Path:
    """The model step's folder of the detector; values.h5 lies beside it."""
    folder = tmp_path_factory.mktemp("detector")
    return prove_into(folder / "stage", detector_checkpoint(folder / "checkpoint"))


@pytest.fixture(scope="session")
def loaded_detector(detector) -> LoadedModel:
    """The detector in memory."""
    return load(detector, "cpu")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """The folder of a finished run of configs/tiny.yaml. Whoever changes a file there takes a copy.

    All processes of one test run share it.
    """
    own = tmp_path_factory.getbasetemp()
    directory = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "tiny"
    with FileLock(f"{directory}.lock"):
        if not (directory / "reports/tiny/index.html").exists():
            directory.mkdir(exist_ok=True)
            make_run(directory, ROOT / "configs/tiny.yaml")
    return directory


@pytest.fixture
def own_tiny(tiny, tmp_path) -> Path:
    """A folder with the run of `tiny`, for tests that keep something beside it. The files are the same: nobody changes them."""
    shutil.copytree(tiny / "results/tiny", tmp_path / "results/tiny", copy_function=os.link)
    shutil.copytree(tiny / "reports", tmp_path / "reports", copy_function=os.link)
    return tmp_path


@pytest.fixture
def forked_python(monkeypatch) -> Path:
    """What asks for its own Python gets forks of a process that has the libraries, see `forks`. Returns this Python."""
    python = forks_of(OFFLINE) / "python-code"
    monkeypatch.setattr("sys.executable", str(python))
    return python


@pytest.fixture
def own_cache(tmp_path_factory, monkeypatch):
    """`datasets` keeps what it reads in a folder of the test run, and asks nothing of the hub."""
    import datasets

    folder = tmp_path_factory.getbasetemp() / "datasets"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    monkeypatch.setattr(datasets.config, "EXTRACTED_DATASETS_PATH", str(folder / "extracted"))
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", str(folder / "downloads"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """No figure is drawn, see `support.draw_nothing`."""
    draw_nothing(monkeypatch)


@pytest.fixture
def cost(request) -> Callable[[str, float], None]:
    """Notes the seconds that a failure cost, for the summary at the end."""
    return lambda failure, seconds: request.node.user_properties.append(("failures", f"{failure}: {seconds:.0f} s"))


def pytest_terminal_summary(terminalreporter) -> None:
    """Prints which failures were made, and what they cost."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    lines = [
        line
        for report in reports
        if report.when == "call"
        for name, line in report.user_properties
        if name == "failures"
    ]
    if lines:
        terminalreporter.section("failures that were made, and what they cost")
        terminalreporter.write_line("\n".join(lines))


LAYER = Layer(0, "block", [SecondMatrix("second", ["first"], "plain", 1)], signed=False)


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory) -> Path:
    """A model stage's folder with a byte-level tokenizer: whatever the text, its tokens spell it."""
    folder = tmp_path_factory.mktemp("byte") / "model"
    folder.mkdir()
    tokenizer = train_tokenizer(["the cat sat on the mat"], 300, 64)
    tokenizer.save_pretrained(folder)
    anatomy = Anatomy(
        checkpoint="bytes", revision="main", dtype="float32", trust_remote_code=False, architecture="None",
        activation="relu", parameters=1, model_hash="0", tokenizer_hash="0", vocabulary=300, context=64, width=8,
        last_block="", returns=0, layers=[LAYER], errors={}, versions={},
    )  # fmt: skip
    write_anatomy(folder, anatomy)
    write_vocabulary(folder, tokenizer, anatomy)
    (folder / "config.json").write_text("{}")
    return folder
