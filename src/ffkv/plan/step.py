"""The plan as a whole: what is left to do, how large it is, and what a trial run says that it takes."""

import json
from pathlib import Path

from ffkv.architectures.coverage import cores as available_cores
from ffkv.plan.amounts import Amounts
from ffkv.plan.jobs import ask_snakemake, read_jobs
from ffkv.plan.outlook import Row, find_warnings, free_disk, free_memory, predict, total_seconds
from ffkv.plan.shape import form_of_run, measure_shape
from ffkv.plan.text import SPLITS, measure_text
from ffkv.plan.trial import Trial, import_libraries, try_out
from ffkv.settings.runs import resolve
from ffkv.settings.yaml_file import read_settings

RESULTS = Path("results")


def make_plan(
    configfile: Path, cores: int | None = None, tokens: dict[str, int] | None = None
) -> tuple[dict[str, Amounts], list[Row], dict[str, float], list[str]]:
    """Plans the runs of a settings file.

    Args:
        configfile: the settings file.
        cores: cores that snakemake may use; None for all.
        tokens: number of tokens by split, for a corpus whose size is not known.
    Returns:
        How much each run has to do; the rules of all runs; totals in seconds and bytes; warnings.
    Raises:
        UserError: the settings, a checkpoint or a corpus cannot be read.
    """
    runs, cores = resolve(read_settings(configfile)), cores or available_cores()
    snakemake = ask_snakemake(configfile, cores)
    libraries = import_libraries()
    forms = {run: form_of_run(settings) for run, settings in runs.items()}
    texts, jobs, trials = {}, read_jobs(snakemake), {}
    amounts, rows = {}, []
    for run, settings in runs.items():
        mine = [job for job in jobs if job.run == run]
        written = {
            Path(job.outputs[0]).stem: Path(job.outputs[0]) for job in mine if job.rule == "corpus" and job.done
        }
        corpus = json.dumps([settings.corpus.model_dump(), settings.model.checkpoint, sorted(map(str, written.values()))])
        if corpus not in texts:
            texts[corpus] = measure_text(settings, forms[run], written, tokens or {})
        text, shape = texts[corpus], measure_shape(forms[run], settings.model.second_matrix)
        amounts[run] = Amounts(settings, shape, text.train, text.validation)
        trial: Trial | None = None
        if not all(job.done for job in mine):
            trained = all(job.done for job in mine if job.rule == "train")
            model = settings.model.model_copy(update={"checkpoint": "", "revision": ""})
            key = (shape, trained, corpus, settings.model_copy(update={"model": model, "seed": 0}).model_dump_json())
            if key not in trials:
                trials[key] = try_out(settings, forms[run], text, cores, trained)
            trial = trials[key]
            amounts[run] = Amounts(settings, shape, text.train, text.validation, trial.amounts.signed)
        rows += predict(amounts[run], trial, mine, cores, libraries, text.vocabulary_seconds)
    totals = {
        "seconds": total_seconds(jobs, rows, cores),
        "cores": cores,
        "written": sum(row.written for row in rows),
        "disk_left": free_disk(RESULTS),
        "memory": max((row.memory for row in rows if row.todo), default=0.0),
        "memory_left": free_memory(),
    }
    return amounts, rows, totals, find_warnings(rows, cores, totals["disk_left"], totals["memory_left"], RESULTS)
