"""A trial run: the workflow's own commands on a small copy of a run, to see what each rule takes on this machine.

The copy has some sentences of the corpus and a random model of the same class and width, with fewer layers and a smaller
vocabulary. It has one more layer group than layers: the job of the empty group does nothing that grows with the run.
"""

import copy
import json
import multiprocessing
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
import yaml
from tqdm import tqdm
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, GPT2Config, logging

from ffkv.embedded.tokenizer import train_tokenizer
from ffkv.errors import UserError
from ffkv.keys.topics import PASSAGE_SENTENCES, PASSAGES
from ffkv.model.anatomy import read_anatomy
from ffkv.plan.growth import measure_amounts
from ffkv.plan.jobs import Job, ask_snakemake, read_jobs
from ffkv.plan.shape import Shape, load_model_form, measure_shape
from ffkv.plan.text import Split, read_size
from ffkv.process import progress
from ffkv.settings import EMBEDDED, Settings

OPERATIONS = 2e10  # floating-point operations that a pass or a projection of the trial may take, about
LARGEST_LAYER = 2e7  # weights of a block; a model with larger ones is replaced by one of the same proportions
TOKENS, PREFIXES, TRIGGERS, KEYS, STEPS, DOCUMENTS, CARDS = 12_000, 300, 25, 16, 4, 30, 2  # at most, in the trial


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
    written: float = 0.0


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


Source = tuple[Any, list[str]]  # a model without weights; sentences of a corpus


def try_out(
    settings: Settings, shape: Shape, splits: dict[str, Split], source: Source, cores: int, trained: bool
) -> Trial:
    """Runs a small copy of a run in a temporary folder.

    Args:
        settings: the settings of the run.
        shape: the shape of its model.
        splits: the sizes of its corpus.
        source: its model without weights, and sentences of its corpus.
        cores: cores that the run may use.
        trained: whether its embedded model exists already.
    Raises:
        UserError: a command of the trial refuses the model or the text.
    """
    with tempfile.TemporaryDirectory(prefix="ffkv-plan-") as name:
        folder = Path(name)
        small = _small_settings(settings, shape, splits, source, folder, trained)
        (folder / "config.yaml").write_text(yaml.safe_dump({**small.model_dump(), "runs": {"trial": {}}}))
        (folder / "results/trial/logs").mkdir(parents=True)
        jobs = read_jobs(ask_snakemake(folder / "config.yaml", cores, folder))
        measured: dict[str, list[Measured]] = {}
        while ready := [job for job in jobs if all((folder / path).exists() for path in job.inputs)]:
            for job in ready:
                measured.setdefault(job.rule, []).append(_measure(job, folder))
                if (
                    job.rule == "triggers"
                ):  # once more with triggers as rare as in the run, where they take the time less often
                    share = read_size(folder / "results/trial/corpus/train.h5").sentences / splits["train"].sentences
                    rare = max(1, round(min(share, 1.0) * settings.triggers.per_key))
                    again = _measure(
                        job._replace(command=re.sub(r"(--per-key[ =])\d+", rf"\g<1>{rare}", job.command)), folder
                    )
                    measured["triggers"] = [again._replace(written=measured["triggers"][0].written)]
            jobs = [job for job in jobs if job not in ready]
        written = {split: read_size(folder / f"results/trial/corpus/{split}.h5") for split in splits}
        signed = any(layer.signed for layer in read_anatomy(folder / "results/trial/model").layers)
        small_shape = measure_shape(load_model_form(small))
        return Trial(measure_amounts(small, small_shape, written, signed), measured, signed)


def _small_settings(
    settings: Settings, shape: Shape, splits: dict[str, Split], source: Source, folder: Path, trained: bool
) -> Settings:
    """Settings of the trial; writes a model and a text, unless the trial trains the embedded model."""
    (form, sentences), keys = source, settings.keys
    layer = min(shape.body / len(shape.memories), LARGEST_LAYER)
    layers = min(len(shape.memories), 2 if 2 * layer < LARGEST_LAYER else 1)
    tokens = max(1000, min(TOKENS, OPERATIONS / (2 * layers * layer)))
    words = accumulate(len(sentence.split()) + 1 for sentence in sentences)
    lines = [" ".join(sentence.split()) for sentence in sentences[: 2 + sum(total < 2 * tokens for total in words)]]
    share = len(lines) / 2 / min(splits["train"].sentences, PASSAGES * PASSAGE_SENTENCES)
    triggers = min(TRIGGERS, settings.triggers.per_key)
    removal = max(2, int(OPERATIONS / (2 * KEYS * 60 * layer)))
    changes: dict[str, dict[str, Any]] = {
        "triggers": {"per_key": triggers},
        "prefixes": {"count": min(PREFIXES, settings.prefixes.count)},
        "keys": {
            "per_layer": min(KEYS, keys.per_layer),
            "removal_triggers": min(triggers, keys.removal_triggers, removal),
            "background_prefixes": max(100, int(keys.background_prefixes * min(share, 1.0))),
        },
        "report": {"cards": min(CARDS, settings.report.cards)},
        "corpus": {"dataset": EMBEDDED, "limit": DOCUMENTS, "validation": [], "validation_share": 0.5},
        "embedded": {"layers": layers, "steps": min(STEPS, settings.embedded.steps)},
    }
    if settings.model.checkpoint != EMBEDDED or trained:
        _write_small_model(shape, form, layers, lines, folder / "checkpoint")
        paths = {split: [str(folder / f"{split}.txt")] for split in splits}
        for start, path in enumerate(paths.values()):
            Path(path[0]).write_text("\n".join(lines[start::2]), errors="replace")
        changes["corpus"] = {"dataset": "files", "limit": 0, "splitter": "line", "txt_document": "line", **paths}
        changes["model"] = {"checkpoint": str(folder / "checkpoint"), "revision": "main", "dtype": shape.dtype}
    sections = {name: getattr(settings, name).model_copy(update=values) for name, values in changes.items()}
    return settings.model_copy(update={**sections, "shards": 1, "layer_groups": layers + 1})


def _write_small_model(shape: Shape, form: Any, layers: int, sentences: list[str], folder: Path) -> None:
    """Writes a random model with so many layers and a smaller vocabulary than a model, and a tokenizer.

    A GPT-2 of the same proportions takes the place of a model with layers that are larger than `LARGEST_LAYER`, and of one
    that transformers cannot make from its config alone.
    """
    config = copy.deepcopy(form.config)
    layer = shape.body / len(shape.memories)
    width = shape.width * min(1.0, (LARGEST_LAYER / layer) ** 0.5)
    columns = max(min(layer, LARGEST_LAYER) / (2 * width) - 2 * width, width)
    vocabulary = int(max(512, min(shape.vocabulary, OPERATIONS / (2 * width * columns * layers))))
    if layer > LARGEST_LAYER or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        heads = max(1, round(width / 64))
        config = GPT2Config(n_embd=64 * heads, n_head=heads, n_inner=int(columns), n_positions=512)
    text = config.get_text_config(decoder=True)
    count = text.num_hidden_layers
    for name, value in list(vars(text).items()):
        if isinstance(value, list) and len(value) == count:
            setattr(text, name, value[:layers])
    text.num_hidden_layers, text.vocab_size = layers, vocabulary
    for part in (config, text):
        part.bos_token_id, part.eos_token_id, part.pad_token_id = 0, 0, None
    logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):
        AutoModelForCausalLM.from_config(config, dtype=getattr(torch, shape.dtype)).save_pretrained(folder)
    train_tokenizer(sentences, vocabulary, 512).save_pretrained(folder)


def _stop_watch() -> Callable[[], float]:
    """Returns a function that tells the seconds since now: those of the clock or those of the processor.

    The fewer of both: what else runs on the machine adds to the first, threads side by side add to the second.
    """
    clock, processor = time.perf_counter(), time.process_time()
    return lambda: min(time.perf_counter() - clock, time.process_time() - processor)


def _measure(job: Job, folder: Path) -> Measured:
    """Runs the command of a job in a fork of this process, which has its libraries already."""
    fork = multiprocessing.get_context("fork").Process(target=_run, args=(job, folder))
    fork.start()
    fork.join()
    if fork.exitcode:
        message = (folder / "log").read_text(errors="replace").strip()[-500:]
        raise UserError(f"The trial run of {job.rule} failed: {message or 'its process was killed'}")
    paths = [path for output in job.outputs for path in (folder / output, *(folder / output).rglob("*"))]
    written = sum(path.stat().st_size for path in paths if path.is_file())
    seconds, working, memory = json.loads((folder / "measured").read_text())
    return Measured(seconds, working, memory, float(written))


def _run(job: Job, folder: Path) -> None:
    """In the fork: runs a command and writes down its seconds, those with an open progress bar, and its peak of memory."""
    from ffkv.cli import ffkv

    opened: list[Callable[[], float]] = []
    bars: list[float] = []

    class Timed(tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            opened.append(_stop_watch())
            super().__init__(*arguments, **options)

        def close(self) -> None:
            if opened:
                bars.append(opened.pop()())
            super().close()

    progress.tqdm = Timed  # type: ignore[misc]
    os.chdir(folder)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    words = shlex.split(job.command)
    before, seconds = psutil.Process().memory_info().rss, _stop_watch()
    try:
        if words[0] == "ffkv":
            ffkv.main([*takewhile(lambda word: not word.startswith(">"), words[1:])], standalone_mode=False)
        else:
            subprocess.run(job.command, shell=True, check=True)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        taken = seconds(), sum(bars) if bars else None, float(max(peak - before, 0))
        Path("measured").write_text(json.dumps(taken))
    except BaseException as error:
        os.write(log, str(error).encode(errors="replace"))
        os._exit(1)
    os._exit(0)
