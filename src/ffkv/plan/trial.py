"""A trial run: the workflow's own commands on a small copy of a run, to see what each rule takes on this machine.

The copy has some sentences of the corpus, and a random GPT-2 of one layer, of the same width, with a smaller vocabulary.
It has two layer groups: the job of the empty one does nothing that grows with the run.
"""

import gc
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import psutil
import torch
import yaml
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel, logging

from ffkv.base.errors import UserError
from ffkv.base.process import progress
from ffkv.base.settings import EMBEDDED, Comparison, Settings
from ffkv.branches.keys.topics import PASSAGE_SENTENCES, PASSAGES
from ffkv.corpus.embedded.tokenizer import train_tokenizer
from ffkv.plan.growth import Amounts, measure_amounts, measure_comparison
from ffkv.plan.known import Known
from ffkv.plan.shape import Shape, load_model_form, measure_shape
from ffkv.plan.speed import measure_speed
from ffkv.plan.text import read_size
from ffkv.workflow.jobs import Job, ask_snakemake, read_jobs, run_command

OPERATIONS, SECONDS = 2e10, 1.0  # that a pass or a projection of the trial may take, about
LEAST_TOKENS = 1000  # of the trial
RUNS = ["trial", "copy"]  # the second one is not run, but copied
TOKENS, PREFIXES, TRIGGERS, KEYS, STEPS, DOCUMENTS, CARDS = 12_000, 300, 25, 48, 4, 30, 2  # at most, in the trial
MEMORIES, EXAMPLES, KEPT = 4, 5, 20  # of interventions, likewise


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


# How much there was to do in the trial, and what each job took, by comparison ("": of the run) and by rule.
Tried = dict[tuple[str, str], tuple[Amounts, list[Measured]]]


def try_out(run: Known, cores: int, trained: bool, comparisons: dict[str, Comparison]) -> Tried:
    """Runs a small copy of a run in a temporary folder, and compares it with a copy of itself.

    Args:
        run: what is known of the run.
        cores: cores that the run may use.
        trained: whether the embedded model exists already. If not, the trial trains one.
        comparisons: the comparisons to make.
    Raises:
        UserError: a command of the trial refuses the model or the text.
    """
    with tempfile.TemporaryDirectory(prefix="ffkv-plan-") as name:
        folder = Path(name)
        small = _small_settings(run, folder, trained)
        compared = {name: _small_comparison(comparison) for name, comparison in comparisons.items()}
        config = {"runs": {run: {} for run in RUNS}, "comparisons": {k: v.model_dump() for k, v in compared.items()}}
        (folder / "config.yaml").write_text(yaml.safe_dump({**small.model_dump(), **config}))
        (folder / "results/trial/logs").mkdir(parents=True)
        listed = read_jobs(ask_snakemake(folder / "config.yaml", cores, folder))
        measured = _measure_ready([job for job in listed if job.run == RUNS[0]], folder)
        if compared:
            for place in ("results", "reports"):
                shutil.copytree(folder / place / RUNS[0], folder / place / RUNS[1])
            measured |= _measure_ready([job for job in listed if job.comparison], folder)
        text = {split: read_size(folder / f"results/trial/corpus/{split}.h5") for split in run.text}
        tried = run._replace(settings=small, shape=measure_shape(load_model_form(small)), text=text)
        amounts = {"": measure_amounts(tried)}
        amounts |= {name: measure_comparison(one, name, 2 * [tried]) for name, one in compared.items()}
        return {(of, rule): (amounts[of][rule], taken) for (of, rule), taken in measured.items()}


def _measure_ready(jobs: list[Job], folder: Path) -> dict[tuple[str, str], list[Measured]]:
    """Runs jobs as soon as their inputs are there; returns what each took."""
    measured: dict[tuple[str, str], list[Measured]] = {}
    while ready := [job for job in jobs if all((folder / path).exists() for path in job.inputs)]:
        for job in ready:
            measured.setdefault((job.comparison, job.rule), []).append(_measure(job, folder))
        jobs = [job for job in jobs if job not in ready]
    return measured


def _small_comparison(comparison: Comparison) -> Comparison:
    """Settings of a comparison in the trial. Both runs have the same numbers."""
    values = [0.0, 1.0] if comparison.axis else []
    return comparison.model_copy(update={"runs": RUNS, "labels": [], "values": values})


def _small_settings(run: Known, folder: Path, trained: bool) -> Settings:
    """Settings of the trial; writes a model and a text, unless the trial trains the embedded model."""
    settings, shape, train = run.settings, run.shape, run.text["train"]
    operations = min(OPERATIONS, SECONDS * measure_speed(shape.dtype))
    layer = min(shape.body / len(shape.memories), operations / LEAST_TOKENS)
    tokens = max(LEAST_TOKENS, min(TOKENS, operations / (2 * layer)))
    words = accumulate(len(sentence.split()) + 1 for sentence in run.sentences)
    lines = [" ".join(each.split()) for each in run.sentences[: 2 + sum(total < 2 * tokens for total in words)]]
    share = min(1.0, len(lines) / 2 / min(train.sentences, PASSAGES * PASSAGE_SENTENCES))
    keys, effects, triggers = settings.keys, settings.intervention, min(TRIGGERS, settings.triggers.per_key)
    most = operations / (120 * layer)  # prefixes without a token
    per_layer = int(min(keys.per_layer, KEYS, max(8, most / 2)))
    changes: dict[str, dict[str, Any]] = {
        "triggers": {"per_key": triggers},
        "prefixes": {"count": int(min(PREFIXES, settings.prefixes.count, max(100, most * 8)))},
        "keys": {
            "per_layer": per_layer,
            "removal_triggers": min(triggers, keys.removal_triggers, max(2, int(most / per_layer))),
            "background_prefixes": max(100, int(keys.background_prefixes * share)),
        },
        "intervention": {
            "memories": min(MEMORIES, effects.memories),
            "examples": min(EXAMPLES, effects.examples),
            "top_k_prefixes": min(KEPT, effects.top_k_prefixes),
        },
        "report": {"cards": min(CARDS, settings.report.cards), "control": ""},
        "corpus": {"dataset": EMBEDDED, "where": {}, "limit": DOCUMENTS, "validation": [], "validation_share": 0.5},
        "embedded": {"layers": 1, "steps": min(STEPS, settings.embedded.steps), "keep_steps": []},
    }
    if settings.model.checkpoint != EMBEDDED or trained:
        _write_small_model(shape, layer, operations, lines, folder / "checkpoint")
        paths = {split: [str(folder / f"{split}.txt")] for split in run.text}
        for start, (path,) in enumerate(paths.values()):
            Path(path).write_text("\n".join(lines[start::2]), errors="replace")
        plain = {"where": {}, "chat_template": False, "splitter": "line", "txt_document": "line"}  # of text files
        changes["corpus"] = {"dataset": "files", "limit": 0, **plain, **paths}
        other = type(settings.model).model_validate({"checkpoint": str(folder / "checkpoint"), "dtype": shape.dtype})
        changes["model"] = {**other.model_dump(), "device": settings.model.device}
    sections = {name: getattr(settings, name).model_copy(update=values) for name, values in changes.items()}
    return settings.model_copy(update={**sections, "shards": 1, "corpus_processes": 1, "layer_groups": 2})


def _write_small_model(shape: Shape, layer: float, operations: float, sentences: list[str], folder: Path) -> None:
    """Writes a random GPT-2 of one layer, and a tokenizer that learns from sentences.

    Its block has `layer` weights: those of attention, 4 d^2, and 2 d d_m. A projection takes `operations` at most.
    """
    heads = max(1, round(shape.width * min(1.0, (layer * len(shape.memories) / shape.body) ** 0.5) / 64))
    width = 64 * heads
    memories = int(max(layer / (2 * width) - 2 * width, width))
    vocabulary = int(max(512, min(shape.vocabulary, operations / (2 * width * memories))))
    sizes: dict[str, Any] = {
        "vocab_size": vocabulary,
        "n_embd": width,
        "n_head": heads,
        "n_inner": memories,
        "n_layer": 1,
        "n_positions": 512,
    }
    activation = "gelu_new" if shape.signed else "relu"
    config = GPT2Config(activation_function=activation, bos_token_id=0, eos_token_id=0, **sizes)
    logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):
        GPT2LMHeadModel(config).to(getattr(torch, shape.dtype)).save_pretrained(folder)
    train_tokenizer(sentences, vocabulary, 512).save_pretrained(folder)


def _measure(job: Job, folder: Path) -> Measured:
    """Runs the command of a job in a fork of this process, which has its libraries already."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as fork:
        try:
            seconds, working, memory = fork.submit(_run, job.command, folder).result()
        except Exception as error:  # whatever a command meets, the plan names the rule
            raise UserError(f"The trial run of {job.rule} failed: {error}") from error
    made = [folder / output for output in job.outputs]
    made += [path.with_suffix(".blocks") for path in made]  # of states, which the file of a shard links to
    paths = [path for top in made for path in (top, *top.rglob("*"))]
    # A second name of a file that was counted already takes no room.
    written = sum(path.stat().st_size for path in paths if path.is_file() and path.stat().st_nlink == 1)
    return Measured(seconds, working, memory, float(written))


def _run(command: str, folder: Path) -> tuple[float, float | None, float]:
    """In the fork: runs a command; returns its seconds, those with an open progress bar, and its peak of memory."""
    gc.freeze()  # else a collection of garbage goes through all that the plan holds: 0.4 s, in whatever job it happens
    progress.tqdm = TimedBar  # type: ignore[misc]  # only in this process: no command tells when its work begins
    os.chdir(folder)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    before, seconds = psutil.Process().memory_info().rss, stop_watch()
    run_command(command)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return seconds(), sum(TimedBar.spent) if TimedBar.spent else None, float(max(peak - before, 0))


def stop_watch() -> Callable[[], float]:
    """Returns a function that tells the seconds since now: those of the clock or those of the processor.

    The fewer of both: what else runs on the machine adds to the first, threads side by side add to the second.
    """
    clock, processor = time.perf_counter(), time.process_time()
    return lambda: min(time.perf_counter() - clock, time.process_time() - processor)


class TimedBar(tqdm):
    """A progress bar that notes the seconds in which it was open."""

    spent: ClassVar[list[float]] = []

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Opens the bar; for the arguments see tqdm."""
        self.seconds = stop_watch()
        super().__init__(*arguments, **options)

    def close(self) -> None:
        """Closes the bar. tqdm may call it again when the bar is deleted."""
        if not self.disable:
            self.spent.append(self.seconds())
        super().close()
