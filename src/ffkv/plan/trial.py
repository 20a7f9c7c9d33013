"""A trial run: the workflow's own commands on a small copy of a run, to see what each rule takes on this machine.

The copy has some sentences of the corpus, and a random GPT-2 of the same width, with one layer and fewer tokens.
It has two layer groups: the job of the empty one does nothing that grows with the run."""

import gc
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
import yaml
from torch.utils.benchmark import Timer
from transformers import GPT2Config, GPT2LMHeadModel, logging

from ffkv.base.doors import PREFIX
from ffkv.base.errors import UserError
from ffkv.base.lookup import exists, is_file
from ffkv.base.process.progress import Bar
from ffkv.branches.settings import EMBEDDED, NONE, Dictionary, Model, Settings
from ffkv.model.shape import Shape, measure_shape
from ffkv.model.small import train_tokenizer
from ffkv.plan.facts import RunFacts, load_model_form, read_size
from ffkv.workflow.jobs import Job, ask_snakemake, read_jobs, run_command

WORDS, WEIGHTS, VOCABULARY = 6000, 5e6, 10_000  # of the text, of a layer and of the tokenizer, at most
MOST = {  # settings of the copy, at most
    "triggers": {"per_key": 25},
    "prefixes": {"count": 300},
    "keys": {"per_layer": 24, "removal_triggers": 8},
    "intervention": {"memories": 4, "examples": 5, "top_k_prefixes": 20},
    "embedded": {"layers": 1, "steps": 4},
}


class Cost(NamedTuple):
    """What a job of the trial took."""

    seconds: float  # without the start of the process
    working: float  # those of them in which a progress bar was open, or all if there was none
    memory: float  # bytes at its peak, beyond those of its libraries
    written: float  # bytes of its outputs


Trial = tuple[RunFacts, Mapping[str, Sequence[Cost]]]  # what is known of the copy, and what the jobs of each rule took


def measure_trial(run: RunFacts, cores: int) -> Trial:
    """Runs a small copy of a run in a temporary folder. If the run's model is not trained yet, the trial trains one.

    `cores`: those that the run may use. Raises UserError if a command of the trial refuses the model or the text.
    """
    with tempfile.TemporaryDirectory(prefix="ffkv-plan-") as name:
        folder, costs = Path(name), dict[str, list[Cost]]()
        small = _small_settings(run, folder)
        (folder / "config.yaml").write_text(yaml.safe_dump({**small.model_dump(), "runs": {"trial": {}}}))
        jobs = read_jobs(ask_snakemake(folder / "config.yaml", cores, folder))
        while ready := [job for job in jobs if all(exists(folder / path) for path in job.inputs)]:
            for job in ready:
                costs.setdefault(job.rule, []).append(_run_job(job, folder))
            jobs = [job for job in jobs if job not in ready]
        text = {split: read_size(folder / f"results/trial/corpus/{split}.h5") for split in run.text}
        return RunFacts(small, measure_shape(load_model_form(small)), text, {}), costs


def _small_settings(run: RunFacts, folder: Path) -> Settings:
    """Returns the settings of the trial; writes its text and its model."""
    settings, changes = run.settings, dict[str, dict[str, Any]]()
    for section, limits in MOST.items():
        changes[section] = {name: min(most, getattr(getattr(settings, section), name)) for name, most in limits.items()}
    changes["report"] = {"control": NONE}
    changes["embedded"] |= {"keep_steps": [], "tuned_from": "", "text": [], "lora_rank": 0}
    text: dict[str, Any] = {"dataset": EMBEDDED, "where": {}, "limit": 30, "validation": [], "validation_share": 0.5}
    if settings.model.checkpoint != EMBEDDED or all(job.done for job in run.jobs.get("train", ())):
        words = accumulate(len(sentence.split()) + 1 for sentence in run.sentences)
        lines = [" ".join(each.split()) for each in run.sentences[: 4 + sum(total < WORDS for total in words)]]
        text |= {"dataset": "files", "limit": 0, "splitter": "line", "txt_document": "line", "chat_template": False}
        for start, split in enumerate(run.text):
            text[split] = [str(folder / f"{split}.txt")]
            Path(*text[split]).write_text("\n".join(lines[start::2]), errors="replace")
        _write_small_model(run.shape, lines, folder / "checkpoint")
        device = settings.model.device if torch.cuda.is_available() else "cpu"  # a plan may be for another machine
        named = {"checkpoint": str(folder / "checkpoint"), "dtype": run.shape.dtype, "device": device}
        changes["model"] = Model.model_validate(named).model_dump()
    changes |= {"corpus": text, "translation": {"lens": ""}}  # a lens fits no model but its own
    changes["dictionary"] = Dictionary(largest=10**6 * settings.dictionary.is_asked).model_dump()  # fits any model
    sections = {name: getattr(settings, name).model_copy(update=values) for name, values in changes.items()}
    for kind, file in (("behaviours", "prompts"), ("concepts", "labels")):  # the jobs run in the folder of the trial
        sections[kind] = dict(getattr(settings, kind))
        for name, its in getattr(settings, kind).items():
            if (path := getattr(its, file)) and not path.startswith(PREFIX):
                sections[kind][name] = its.model_copy(update={file: str(Path(path).absolute())})
    return settings.model_copy(update={**sections, "shards": 1, "corpus_processes": 1, "layer_groups": 2})


def _write_small_model(shape: Shape, sentences: list[str], folder: Path) -> None:
    """Writes a random GPT-2 of one layer, and a tokenizer that learns from sentences.

    Its block has as many weights as one of the run's, 4 d^2 of attention and 2 d d_m, as long as a pass takes a second
    or two: processors without instructions for 16 bits are a hundred times slower than others.
    """
    left, right = (torch.ones(rows, 512, dtype=getattr(torch, shape.dtype)) for rows in (64, 512))
    speed = 2 * 64 * 512**2 / Timer("left @ right", globals={"left": left, "right": right}).timeit(3).median
    layer = shape.body / len(shape.memories)
    weights = min(layer, WEIGHTS, speed / 2000)  # `speed` in operations per second
    width = 64 * max(1, round(shape.width * (weights / layer) ** 0.5 / 64))
    inner, vocabulary = int(max(weights / (2 * width) - 2 * width, width)), max(512, min(shape.vocabulary, VOCABULARY))
    sizes: dict[str, Any] = {"n_layer": 1, "n_embd": width, "n_head": width // 64, "n_inner": inner, "n_positions": 512}
    sizes |= {"vocab_size": vocabulary, "activation_function": "gelu_new" if shape.signed else "relu"}
    logging.disable_progress_bar()
    model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **sizes))
    model.to(getattr(torch, shape.dtype)).save_pretrained(folder)
    train_tokenizer(sentences, vocabulary, 512).save_pretrained(folder)


def _run_job(job: Job, folder: Path) -> Cost:
    """Runs the command of a job in a fork of this process, which has its libraries already."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as fork:
        try:
            return fork.submit(_run_here, job, folder).result()
        except Exception as error:  # whatever a command meets, the plan names the rule
            raise UserError(f"The trial run of {job.rule} failed: {error}") from error


def _run_here(job: Job, folder: Path) -> Cost:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a fork has no such threads, and would wait for them without end
    gc.freeze()  # else a collection of garbage goes through all that the plan holds: 0.4 s, in whatever job it happens
    Bar.spent.clear()  # those of the process that was forked
    os.chdir(folder)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    before, clock, processor = psutil.Process().memory_info().rss, time.perf_counter(), time.process_time()
    run_command(job.command)
    passed, of_processor = time.perf_counter() - clock, time.process_time() - processor
    # What else runs on the machine adds to the one, threads side by side add to the other.
    seconds, open_bars = min(passed, of_processor), sum(Bar.spent) if Bar.spent else passed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    made = [Path(output) for output in job.outputs]
    made += [path.with_suffix(".blocks") for path in made]  # of states, which the file of a shard links to
    found = [path.stat() for top in made for path in (top, *top.rglob("*")) if is_file(path)]
    written = sum(file.st_size for file in found if file.st_nlink == 1)  # a second name of a file takes no room
    return Cost(seconds, seconds * open_bars / passed, float(max(peak - before, 0)), float(written))
