"""A trial run: the workflow's own commands on a small copy of a run, to see what each rule costs on this machine.

The copy has some sentences of the corpus and a random model of the same class and width with fewer layers and a smaller
vocabulary (`shrink`). Its layer groups are one more than its layers, so that one job per rule has no layer: what that job
takes does not grow with the run.
"""

import copy
import importlib
import multiprocessing
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import accumulate, takewhile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
import yaml
from tqdm import tqdm
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, GPT2Config

from ffkv.embedded.tokenizer import train_tokenizer
from ffkv.errors import UserError
from ffkv.keys.topics import PASSAGE_SENTENCES, PASSAGES
from ffkv.model.anatomy import read_anatomy
from ffkv.plan.growth import measure_amounts
from ffkv.plan.jobs import Job, ask_snakemake, read_jobs
from ffkv.plan.shape import Shape, load_model_form, measure_shape
from ffkv.plan.text import SPLITS, Split, read_size
from ffkv.settings import EMBEDDED, Settings

OPERATIONS = 2e10  # floating-point operations that a pass or a projection of the trial may take, about
LARGEST_LAYER = 2e7  # weights of a block; larger ones are replaced by a smaller one of the same proportions
TOKENS, PREFIXES, TRIGGERS, KEYS, STEPS, DOCUMENTS, CARDS = 12_000, 300, 25, 16, 4, 30, 2  # at most, in the trial
# What jobs import: without torch, and further modules with it.
LIBRARIES = {
    False: ("ffkv.files.tables", "pyarrow.parquet", "ffkv.corpus.corpus_file", "ffkv.keys.patterns"),
    True: ("ffkv.model.checkpoint.load", "ffkv.model.head.head_file", "transformers.models.gpt2.modeling_gpt2"),
}


class Measured(NamedTuple):
    """What a job of the trial took.

    Attributes:
        seconds: seconds without the start of the process.
        working: seconds in which a progress bar was open; None if there was none.
        memory: bytes at its peak, beyond those of its libraries.
        written: bytes of its outputs.
    """

    seconds: float
    working: float | None
    memory: float
    written: float


class Trial(NamedTuple):
    """What a trial run tells.

    Attributes:
        amounts: how much it had to do.
        jobs: what each job took, by rule.
        signed: whether coefficients can be negative.
    """

    amounts: dict[str, float]
    jobs: dict[str, list[Measured]]
    signed: bool


def import_libraries() -> dict[bool, tuple[float, float]]:
    """Imports what jobs import: seconds and bytes at the start of a job, without torch (False) and with it (True)."""
    taken = {}
    for torch_too, modules in LIBRARIES.items():
        for module in modules:
            importlib.import_module(module)
        taken[torch_too] = time.process_time(), float(psutil.Process().memory_info().rss)
    return taken


def try_out(
    settings: Settings,
    shape: Shape,
    form: Any,
    splits: dict[str, Split],
    sentences: list[str],
    cores: int,
    trained: bool,
) -> Trial:
    """Runs a small copy of a run in a temporary folder.

    Args:
        settings: the settings of the run.
        shape: the shape of its model.
        form: its model, without weights.
        splits: the sizes of its corpus.
        sentences: sentences of its corpus.
        cores: cores that the run may use.
        trained: whether its embedded model exists already.
    Raises:
        UserError: a command of the trial refuses the model or the text.
    """
    with tempfile.TemporaryDirectory(prefix="ffkv-plan-") as name:
        folder = Path(name)
        small = _small_settings(settings, shape, form, splits, sentences, folder, trained)
        (folder / "config.yaml").write_text(yaml.safe_dump({**small.model_dump(), "runs": {"trial": {}}}))
        (folder / "results/trial/logs").mkdir(parents=True)
        jobs = read_jobs(ask_snakemake(folder / "config.yaml", cores, folder))
        measured: dict[str, list[Measured]] = {}
        while ready := [job for job in jobs if all((folder / path).exists() for path in job.inputs)]:
            for job in ready:
                measured.setdefault(job.rule, []).append(_measure(job, folder))
            jobs = [job for job in jobs if job not in ready]
        run = folder / "results/trial"
        small_splits = {split: read_size(run / f"corpus/{split}.h5") for split in SPLITS}
        signed = any(layer.signed for layer in read_anatomy(run / "model").layers)
        small_shape = measure_shape(load_model_form(small))
        return Trial(measure_amounts(small, small_shape, small_splits, signed), measured, signed)


def _small_settings(
    settings: Settings,
    shape: Shape,
    form: Any,
    splits: dict[str, Split],
    sentences: list[str],
    folder: Path,
    trained: bool,
) -> Settings:
    """Settings of the trial; writes a model and a text, unless the trial trains the embedded model."""
    keys, layer = settings.keys, min(shape.body / len(shape.memories), LARGEST_LAYER)
    layers = min(len(shape.memories), 2 if 2 * layer < LARGEST_LAYER else 1)
    tokens = max(1000, min(TOKENS, OPERATIONS / (2 * layers * layer)))
    words = accumulate(len(sentence.split()) + 1 for sentence in sentences)
    count = sum(1 for _ in takewhile(lambda total: total < 2 * tokens, words))
    lines = [" ".join(sentence.split()) for sentence in sentences[: count + 1]]
    share = len(lines) / 2 / min(splits["train"].sentences, PASSAGES * PASSAGE_SENTENCES)
    triggers = min(TRIGGERS, settings.triggers.per_key)
    patterns = max(min(triggers, keys.pattern_triggers), 3)
    removal = max(2, int(OPERATIONS / (2 * KEYS * 60 * layer)))
    changes: dict[str, dict[str, Any]] = {
        "triggers": {"per_key": triggers},
        "prefixes": {"count": min(PREFIXES, settings.prefixes.count)},
        "keys": {
            "per_layer": min(KEYS, keys.per_layer),
            "pattern_triggers": patterns,
            "minimum_prefixes": min(keys.minimum_prefixes, patterns),
            "removal_triggers": min(triggers, keys.removal_triggers, removal),
            "background_prefixes": max(100, int(keys.background_prefixes * min(share, 1.0))),
        },
        "report": {"cards": min(CARDS, settings.report.cards)},
        "corpus": {"dataset": EMBEDDED, "limit": DOCUMENTS, "validation": [], "validation_share": 0.5},
        "embedded": {"layers": layers, "steps": min(STEPS, settings.embedded.steps)},
    }
    if settings.model.checkpoint != EMBEDDED or trained:
        _write_small_model(form, shape, layers, lines, folder / "checkpoint")
        files = {"train": lines[::2], "validation": lines[1::2]}
        for split, part in files.items():
            (folder / f"{split}.txt").write_text("\n".join(part), errors="replace")
        paths = {split: [str(folder / f"{split}.txt")] for split in files}
        changes["corpus"] = {"dataset": "files", "limit": 0, "splitter": "line", "txt_document": "line", **paths}
        changes["model"] = {"checkpoint": str(folder / "checkpoint"), "revision": "main", "dtype": shape.dtype}
    sections = {name: getattr(settings, name).model_copy(update=values) for name, values in changes.items()}
    return settings.model_copy(update={**sections, "shards": 1, "layer_groups": layers + 1})


def _write_small_model(form: Any, shape: Shape, layers: int, sentences: list[str], folder: Path) -> None:
    """Writes a random model like another one, with fewer layers and a smaller vocabulary, and a tokenizer.

    A model with larger layers than `LARGEST_LAYER`, or of a class that transformers does not know by itself, is replaced by
    a GPT-2 of the same proportions.
    """
    layer = shape.body / len(shape.memories)
    scale = min(1.0, (LARGEST_LAYER / layer) ** 0.5)
    columns = max(layer * scale * scale / (2 * shape.width * scale) - 2 * shape.width * scale, shape.width * scale)
    vocabulary = int(min(shape.vocabulary, max(512, OPERATIONS / (2 * shape.width * scale * columns * layers))))
    config = copy.deepcopy(form.config)
    if scale < 1 or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        width = max(64, 64 * round(shape.width * scale / 64))
        config = GPT2Config(n_embd=width, n_head=width // 64, n_inner=int(columns), n_positions=512)
    text = config.get_text_config(decoder=True)
    count = text.num_hidden_layers
    for name, value in list(vars(text).items()):
        if isinstance(value, list) and len(value) == count:
            setattr(text, name, value[:layers])
    text.num_hidden_layers, text.vocab_size = layers, vocabulary
    for part in (config, text):
        part.bos_token_id = part.eos_token_id = 0
        part.pad_token_id = None
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, shape.dtype))
    model.save_pretrained(folder)
    train_tokenizer(sentences, max(vocabulary, 300), 512).save_pretrained(folder)


def stop_watch() -> Callable[[], float]:
    """Returns a function that tells the seconds since now: those on the clock or those of the processor, whichever is less.

    What else runs on the machine lengthens the first, threads that work at the same time lengthen the second.
    """
    clock, processor = time.perf_counter(), time.process_time()
    return lambda: min(time.perf_counter() - clock, time.process_time() - processor)


def _measure(job: Job, folder: Path) -> Measured:
    """Runs the command of a job in a fork of this process, which has its libraries already."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(job, folder, sender))
    process.start()
    sender.close()
    try:
        seconds, working, peak = receiver.recv()
    except EOFError:
        log = (folder / "log").read_text(errors="replace").strip()[-500:]
        raise UserError(f"The trial run of {job.rule} failed: {log or 'its process ended'}") from None
    finally:
        process.join()
    outputs = [folder / path for path in job.outputs]
    files = [file for path in outputs for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
    return Measured(seconds, working, peak, float(sum(file.stat().st_size for file in files)))


def _run(job: Job, folder: Path, sender: Connection) -> None:
    """In the fork: runs a command and sends its seconds, those with an open progress bar, and its peak of memory."""
    from ffkv.cli import ffkv
    from ffkv.process import progress

    class Timed(tqdm):
        """A progress bar that counts the seconds in which it is open."""

        open_seconds: list[float] = []  # noqa: RUF012

        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.since = stop_watch()
            super().__init__(*arguments, **options)

        def close(self) -> None:
            if not self.disable:
                self.open_seconds.append(self.since())
            super().close()

    progress.tqdm = Timed  # type: ignore[misc]
    os.chdir(folder)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    words = shlex.split(job.command)
    before = psutil.Process().memory_info().rss
    since = stop_watch()
    try:
        if words[0] == "ffkv":
            ffkv.main([*takewhile(lambda word: not word.startswith(">"), words[1:])], standalone_mode=False)
        else:
            subprocess.run(job.command, shell=True, check=True)
        seconds = since()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        sender.send((seconds, sum(Timed.open_seconds) if Timed.open_seconds else None, max(float(peak - before), 0.0)))
    except BaseException as error:
        print(error, flush=True)
    os._exit(0)
