"""The plan: what is left to do, what a trial says that it takes, and which settings would save most of it."""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from subprocess import Popen
from typing import Any

import jinja2
import yaml

from ffkv.activations.prefix_file import IN_MEMORY
from ffkv.base.fault import free_memory
from ffkv.base.lookup import exists
from ffkv.base.settings.common import TOKENS_ON_CPU
from ffkv.base.terminal import in_bytes
from ffkv.branches.registry import BRANCHES
from ffkv.branches.settings import EMBEDDED, Section, Settings
from ffkv.corpus.step import choose_sentences
from ffkv.plan.facts import Jobs, RunFacts, as_trained, inspect_run
from ffkv.plan.trial import Cost, Trial, measure_trial
from ffkv.run.report.wording import note
from ffkv.run.results.text import duration, percent
from ffkv.workflow import ROOT
from ffkv.workflow.jobs import STEPS, import_libraries, libraries_of, read_jobs
from ffkv.workflow.runs import controls_of, untrained

SLURM = Path("profiles/slurm/profile.yaml")
RESULTS = Path("results")
READING = 1e9  # bytes of weights that a job reads per second: an assumption, for a local disk
SAMPLES = ("prefixes", *BRANCHES)  # sections with sizes of samples


def make_plan(
    runs: Mapping[str, Settings], snakemake: Popen, cores: int, tokens: int | None = None, gpu: float = 0.0
) -> dict[str, Any]:
    """Plans runs, by their settings, in the working directory.

    `snakemake`: the Snakemake that lists their jobs, see `ask_snakemake`. `cores`: those that snakemake may use. `tokens`:
    number of tokens of the train split, for a corpus whose size cannot be known. `gpu`: operations per second of a GPU that
    the run will have; 0 for the times of this machine.

    Returns "runs": sizes of model and text, bytes on a GPU, rules (see `plan_rules`). "savings": see `find_savings`. "total":
    seconds, those of controls among them, and bytes, and what is free. "warnings": what is too small. "not_estimated": other
    rules left. Raises UserError if the settings, a checkpoint or a corpus cannot be read, or the hub does not give it.
    """
    own: dict[str, Any] = {run: {} for run in runs}
    jobs = read_jobs(snakemake)
    for job in jobs:
        own.setdefault(job.run, {}).setdefault(job.rule, []).append(job)
    controls = controls_of(runs)
    facts = {run: inspect_run(as_trained(run, runs, own), own[run], tokens) for run in runs if run not in controls}
    facts |= {name: _control(run, facts[run], own[name]) for name, run in controls.items()}
    trials = _try_out(facts, cores)
    rows = {run: plan_rules(each, trials.get(run), cores, gpu) for run, each in facts.items()}
    todo = [(run, row) for run, each in rows.items() for row in each if not row["done"]]
    total = {
        "seconds": sum(row["seconds"] for _, row in todo),
        "controls": sum(row["seconds"] for run, row in todo if run in controls),
        "cores": cores,
        "gpu": gpu,
        "written": sum(row["written"] for _, row in todo),
        "memory": max((row["memory"] for _, row in todo), default=0.0),
        "disk_left": shutil.disk_usage(RESULTS if exists(RESULTS) else Path()).free,
        "memory_left": free_memory(),
    }
    told: dict[str, dict[str, Any]] = {}
    for run, each in facts.items():
        text = {name: split._asdict() for name, split in each.text.items()}
        shape = each.shape._asdict() | {"layers": each.shape.layers, "all_memories": each.shape.all_memories}
        told[run] = {"shape": shape, "text": text, "download": each.download, "device": device_bytes(each)}
        told[run] |= {"control": run in controls, "rules": rows[run]}
    left_out = {job.rule for job in jobs if not job.done} - {row["rule"] for _, row in todo}
    savings, warnings = find_savings(facts, trials, cores, gpu), find_warnings(todo, total)
    return {"runs": told, "savings": savings, "total": total, "warnings": warnings, "not_estimated": sorted(left_out)}


def _control(run: str, facts: RunFacts, jobs: Jobs) -> RunFacts:
    """Returns what is known of the control of a run: it reads a part of the run's text, and takes no weights of the hub."""
    train = facts.text["train"]
    part = len(choose_sentences(round(train.sentences))) / max(train.sentences, 1)
    text = {**facts.text, "train": train.times(part, f"a part of that of {run}")}
    return facts._replace(settings=untrained(run, facts.settings), jobs=jobs, text=text, download=0)


def _try_out(facts: Mapping[str, RunFacts], cores: int) -> dict[str, Trial]:
    """Tries each run of which something is left to do. Runs that are alike share a trial, and so do a run and its control."""
    trials, alike, controls = dict[str, Trial](), dict[str, Trial](), controls_of(facts)
    for run, each in facts.items():
        undone = [rule for rule, jobs in each.jobs.items() if not all(job.done for job in jobs)]
        if undone:
            tried = controls.get(run, run)
            settings = facts[tried].settings.model_copy(update={"model": None, "seed": 0, "report": None})
            key = repr((each.shape, settings, "train" in undone))
            trials[run] = alike[key] = trials.get(tried) or alike.get(key) or measure_trial(facts[tried], cores)
    return trials


def plan_rules(run: RunFacts, trial: Trial | None, cores: int, gpu: float = 0.0) -> list[dict[str, Any]]:
    """Says what is left to do of each rule: what it took in the trial, as many times as there is more to do.

    With `gpu` operations per second, rules that use a GPU take as long as their operations take there, one job at a time.

    Returns "rule", "jobs" (their number), "done"; if some are left: "at_once" (how many of them run together), "written"
    (bytes of all outputs), "memory" (bytes of a job at its peak), "seconds" (of all, with nothing else running),
    "operations" (of all, of rules that use a GPU).
    """
    rows, (small, taken) = [], trial or (run, {})
    weights = device_bytes(run)["weights"]
    taken = {**taken, "unpack": [Cost(run.unpacking, 0.0, run.packed, weights)]}  # the trial's model is not packed
    # A copy is as large as a corpus of its size, and takes no time.
    taken["copy_corpus"] = [cost._replace(seconds=0.0, working=0.0) for cost in taken.get("corpus", [])]
    works = measure_amounts(run), measure_amounts(small)
    for rule, jobs in run.jobs.items():
        todo = sum(not job.done for job in jobs)
        if not todo:
            rows.append({"rule": rule, "jobs": 0, "done": True})
            continue
        if rule not in taken:
            continue
        threads, libraries, costs = jobs[0].threads, libraries_of(rule), taken[rule]
        start, base = import_libraries()[libraries]  # seconds and bytes
        (amount, stored), (tried, kept) = (of.get(rule, (0.0, 1.0)) for of in works)
        working = [cost.working if amount else 0.0 for cost in costs]  # what grows is done while a progress bar is open
        least = min(working) if len(costs) > 1 else 0.0  # but not what the job that has no layers does then
        around = least + max(cost.seconds - work for cost, work in zip(costs, working, strict=True))
        growing = (sum(working) - len(working) * least) * amount / (tried or 1)
        if rule in ("corpus", "train"):  # the threads of `corpus` are processes
            growing += sum(split.seconds for split in run.text.values()) / (threads if rule == "corpus" else 1)
        elif libraries == "model":
            around += weights / READING + (run.loading if rule == "unpack" or "unpack" not in run.jobs else 0.0)
        operations = 2 * amount if rule in STEPS and "model/device" in STEPS[rule].settings else 0.0
        at_once, share = max(1, min(cores // threads, todo)), todo / len(jobs)
        if on_gpu := bool(gpu and operations and run.settings.model.device != "cpu"):
            at_once, growing = 1, operations / gpu
        more = measure_memory(run, rule, libraries, on_gpu) - measure_memory(small, rule, libraries)
        row = {"rule": rule, "jobs": todo, "done": False, "at_once": at_once}
        row["written"] = sum(cost.written for cost in costs) * stored / (kept or 1) * share
        row["memory"] = base + max(cost.memory for cost in costs) + max(more, 0.0)
        row["seconds"] = -(-todo // at_once) * (start + around + growing / len(jobs))
        row["operations"] = operations * share
        rows.append(row)
    return rows


def find_savings(
    facts: Mapping[str, RunFacts], trials: Mapping[str, Trial], cores: int, gpu: float = 0.0
) -> list[dict[str, Any]]:
    """Finds the two settings that would save most time at a tenth of their value. `gpu`: see `make_plan`.

    Returns "setting" (such as "keys.per_layer"), "instead_of" (its value), "value" (a tenth of it), "seconds" (that it
    saves, the second one on top of the first).
    """

    def seconds(runs: Mapping[str, RunFacts]) -> float:
        rows = (row for run, each in runs.items() for row in plan_rules(each, trials.get(run), cores, gpu))
        return sum(row.get("seconds", 0.0) for row in rows)

    found: list[dict[str, Any]] = []
    controls = controls_of(facts)
    for _ in range(2):
        options = sorted({option for run, each in facts.items() if run not in controls for option in _smaller(each)})
        changed = {option: {run: _with(each, *option) for run, each in facts.items()} for option in options}
        for each in changed.values():
            each |= {name: _control(run, each[run], each[name].jobs) for name, run in controls.items()}
        saved = {option: seconds(facts) - seconds(each) for option, each in changed.items()}
        best = max(options, key=saved.__getitem__)
        if saved[best] < 60:  # seconds: not worth a line
            break
        facts = changed[best]
        found.append({"setting": best[0], "instead_of": best[1], "value": best[2], "seconds": saved[best]})
    return found


def _smaller(run: RunFacts) -> Iterator[tuple[str, int, int]]:
    """Yields name, value, and a tenth of it, of each size of a sample."""
    for section in SAMPLES:
        own = getattr(run.settings, section, None)  # a mapping of behaviours; none of a branch without settings
        for name, value in own if isinstance(own, Section) else ():
            if type(value) is int and value > 1:
                yield f"{section}.{name}", value, max(1, value // 10)
    if run.settings.corpus.dataset != EMBEDDED:
        yield "corpus.limit", run.settings.corpus.limit, max(2, int(run.text["train"].documents) // 10)


def _with(run: RunFacts, name: str, value: int, less: int) -> RunFacts:
    section, key = name.split(".")
    values, text = getattr(run.settings, section), run.text
    if getattr(values, key) != value:
        return run
    if section == "corpus":
        text = {split: size.times(min(1.0, less / size.documents), size.source) for split, size in text.items()}
    settings = run.settings.model_copy(update={section: values.model_copy(update={key: less})})
    return run._replace(settings=settings, text=text)


def find_warnings(todo: Sequence[tuple[str, Mapping[str, Any]]], total: Mapping[str, float]) -> list[str]:
    """Says where the disk or the memory does not suffice for what is left to do, by run and rule."""
    needs = [(run, row) for run, row in todo if row["memory"] * row["at_once"] > total["memory_left"]]
    lacking = {"disk": total["written"] > total["disk_left"], "memory": bool(needs)}
    told = {"total": total, "needs": needs, "folder": RESULTS, "in_bytes": in_bytes}
    return [note(__package__, name, **told) for name, lacks in lacking.items() if lacks]


def measure_amounts(run: RunFacts) -> dict[str, tuple[float, float]]:
    """Returns how much each rule has to do and to write that grows, see `Step.amount`. Branches and packages say it themselves."""
    settings, shape, train, validation = run.settings, run.shape, run.text["train"], run.text["validation"]
    numbers = shape.active * shape.all_memories + 2 * shape.layers * shape.width
    copies = settings.shards + (settings.shards > 1)  # of the triggers, until shards are merged
    return {rule: step.amount(run) for rule, step in STEPS.items() if step.amount} | {
        "model": (shape.body, shape.head + shape.all_memories * shape.width),
        **dict.fromkeys(("corpus", "copy_corpus"), (0.0, train.tokens + validation.tokens)),
        "triggers": (train.tokens * shape.body, copies * run.trigger_bytes),
        "merge_triggers": (settings.shards * run.trigger_bytes, 1.0),
        # y, o and m of a prefix; the zeros of experts that it is not sent to are compressed.
        "sampled_prefixes": (validation.tokens_read(run.sampled) * shape.body, run.sampled * numbers),
    }


def device_bytes(run: RunFacts) -> dict[str, float]:
    """Returns the bytes that a job takes on a GPU: weights; and beside them batches, triggers and the driver.

    Beside them also what interventions hold in float32: the output embedding, and one block (of a model in float32, its
    values in float64).
    """
    shape, driver = run.shape, 5e8
    tokens = TOKENS_ON_CPU if (wanted := run.settings.batches.tokens) == "auto" else wanted  # of `auto` the least
    batch = 4 * tokens * (8 * max(shape.memories) + 12 * shape.width)
    exact = 4 * (shape.head + (shape.parameters - shape.outside) / shape.layers)
    return {
        "weights": float(shape.parameters * shape.itemsize),
        "working": driver + batch + run.trigger_bytes / 3 + exact,
    }


def measure_memory(run: RunFacts, rule: str, libraries: str, on_gpu: bool = False) -> float:
    """Returns the bytes of a job (`libraries_of`), as far as they grow: on a GPU, those that it holds beside it."""
    shape, device = run.shape, device_bytes(run)
    model = 0.0 if on_gpu else 1.25 * device["weights"] + device["working"]  # a quarter more while weights are read
    passing = model + run.trigger_bytes * (rule != "model")
    states = shape.all_memories + 2 * shape.layers * shape.width  # of a prefix
    block = 4 * states * min(run.sampled, run.settings.batches.block_sentences)
    held = {
        "corpus": 20 * run.text["train"].text_bytes,  # lists and arrays beside the text
        "sampled_prefixes": passing + block * (block < IN_MEMORY),
        "model": passing,
        "head": shape.outside * shape.itemsize + 4 * run.sampled * (2 * max(shape.memories) + 4 * shape.width),
        "tables": run.trigger_bytes * rule.startswith(("keys", "report")),
    }
    step = STEPS.get(rule)
    return held[rule if rule in held else libraries] + (step.memory(run) if step and step.memory else 0.0)


def as_text(plan: Mapping[str, Any], every: bool = False) -> str:
    """Writes the plan for a person: what takes longest, and the totals. `every`: a table with every rule of each run, too."""
    todo = [{"run": run, **row} for run, found in plan["runs"].items() for row in found["rules"] if not row["done"]]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"in_bytes": in_bytes, "duration": duration, "percent": percent}
    template = environment.from_string(files("ffkv.plan").joinpath("plan.txt").read_text(encoding="utf-8"))
    text = template.render(plan, todo=todo, every=every, shortages=tell_shortages(todo))
    return text.rstrip().replace("\xa0", " ")  # a terminal gets it spelled out


def tell_shortages(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names the rules that need more memory per job than the profile for SLURM asks for, in one line if any do."""
    path = SLURM if exists(SLURM) else ROOT / SLURM
    profile, short = yaml.safe_load(path.read_bytes()) or {}, {}
    for row in rows:
        asks = profile.get("default-resources", {}) | profile.get("set-resources", {}).get(row["rule"], {})
        # A number of MB, or an expression that begins with that of the first attempt.
        asked = 1e6 * float((re.findall(r"^\d+", str(asks.get("mem_mb"))) or ["inf"])[0])
        if asked < row["memory"]:
            short[row["rule"]] = f"{row['rule']} {in_bytes(row['memory'])} ({in_bytes(asked)})"
    told = f"SLURM: these rules need more memory than {path} asks for at first (in brackets)"
    return [f"{told}: {', '.join(short.values())}."] if short else []
