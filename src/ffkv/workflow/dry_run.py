"""What `snakemake -n` tells: how many jobs there are to do, why, and how long they took before. Snakemake itself prints a paragraph per job."""

import logging
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake.exceptions import WorkflowError
from snakemake_interface_logger_plugins.common import LogEvent

from ffkv.base.terminal import say

COLUMNS = 110  # of a line
OF_CONTENT = re.compile(r"'?[0-9a-f]{16,}'?$")  # a parameter of `ffkv.workflow.inputs.contents`


def before_jobs_are_listed(check: Callable[[], None], tell: Callable[[], str] | None) -> None:
    """Lets a dry run check what the jobs read, and print a text in the place of all that Snakemake says of its jobs.

    Snakemake calls no `onstart` in a dry run, but it logs how many jobs there are once it knows them.

    Args:
        check: called once the jobs are known. What it says in a WorkflowError ends Snakemake.
        tell: returns the text; None if Snakemake is to say what it always says.
    """

    def passes(record: logging.LogRecord) -> bool:
        if getattr(record, "event", None) != LogEvent.RUN_INFO or told:
            return tell is None or record.levelno > logging.INFO or record.msg == NOTHING_TO_BE_DONE_MSG
        told.append(True)
        try:
            check()
        except WorkflowError as error:
            say(error, error=True)
            sys.exit(1)  # Snakemake would print the way from here to there
        record.msg = tell() if tell else record.msg
        return True

    told: list[bool] = []
    logging.getLogger("snakemake.logging").addFilter(passes)


def summarize(dag: Any, rules: Iterable[str], configfile: str) -> str:
    """Returns the text about the jobs that Snakemake would start: at most 20 lines, unless there are very many rules.

    `rules`: names of all rules, in their order. `configfile`: the settings file, for the advice at the end.
    """
    order = {name: place for place, name in enumerate(rules)}
    jobs = sorted(dag.needrun_jobs(), key=lambda job: order[job.rule.name])
    of_rules = Counter(job.rule.name for job in jobs)
    of_runs = Counter(job.wildcards_dict["run"] for job in jobs if "run" in job.wildcards_dict)
    causes: dict[str, Counter[str]] = {}
    for job in jobs:
        causes.setdefault(_cause(dag.reason(job)), Counter())[job.rule.name] += 1
    counts = ", ".join(f"{run} {count}" for run, count in of_runs.items())
    runs = textwrap.shorten(counts, COLUMNS - 30, placeholder=" ...")
    whose = f" (by run: {runs})" if runs else ""
    lines = [f"{len(jobs)} jobs would run{whose}:", *_wrapped(_named(of_rules)), "Why:"]
    for cause, own in sorted(causes.items(), key=lambda item: -item[1].total()):
        some = _named(own) if len(own) < 10 else f"{own.total()} jobs"
        which = f"all {len(jobs)}" if own.total() == len(jobs) else some
        lines += _wrapped(f"{cause}: {which}")
    seconds = [each for job in jobs if job.benchmark and (each := _seconds(Path(str(job.benchmark)))) is not None]
    if seconds:
        from ffkv.run.results.text import duration  # needs pandas, which a start of Snakemake does without

        lines.append(f"Time: {len(seconds)} of them took {duration(sum(seconds))} before, one after the other.")
    advice = "estimates time, disk and memory. `snakemake -n -p` lists each job and its command."
    return "\n".join([*lines, f"`ffkv plan {configfile}` {advice}", "Nothing was done: this was a dry run (-n)."])


def _wrapped(text: str) -> list[str]:
    held = text.replace(" x ", "\0x\0")  # a number stays beside its rule
    lines = textwrap.wrap(held, COLUMNS, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def _named(rules: Counter[str]) -> str:
    return ", ".join(f"{name} x {count}" if count > 1 else name for name, count in rules.items())


def _cause(reason: Any) -> str:
    """Says why Snakemake would start a job: the first of its reasons, or that what it reads is made anew."""
    parameters = {str(each) for each in reason.params_changed.only_old | reason.params_changed.only_new}
    of_code = {each for each in parameters if each.lstrip("'").startswith("code ")}
    of_content = {each for each in parameters if OF_CONTENT.match(each)}
    causes = {
        "asked for (--force)": reason.forced,
        "not made yet": reason.missing_output,
        "cut short before": reason.incomplete_output,
        "settings changed": parameters - of_code - of_content,
        "text, prompts, weights or annotations changed": of_content,
        "the code of ffkv changed": of_code or reason.code_changed,
        "the environment changed": reason.software_stack_changed,
        "input files changed": reason.input_changed or reason.updated_input - reason.updated_input_run,
        "what it reads is made anew": reason.updated_input_run,
    }
    return next((cause for cause, holds in causes.items() if holds), "what it makes is needed by the others")


def _seconds(benchmark: Path) -> float | None:
    try:
        return float(benchmark.read_text().splitlines()[1].split("\t")[0])
    except (OSError, ValueError, IndexError):
        return None
