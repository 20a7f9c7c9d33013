"""The jobs of a settings file, as Snakemake reports them: their commands, their files, and whether they are done."""

import csv
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import ffkv
from ffkv.errors import UserError

SNAKEFILES = (Path("Snakefile"), Path("workflow/Snakefile"), Path(ffkv.__file__).parent / "workflow/Snakefile")


@dataclass(frozen=True)
class Job:
    """One job of the workflow.

    Attributes:
        rule: name of its rule.
        run: name of its run.
        command: the words of its shell command, without the redirection into its log.
        inputs: paths that it reads.
        outputs: paths that it writes.
        done: whether each output exists and is up to date.
    """

    rule: str
    run: str
    command: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    done: bool

    @property
    def threads(self) -> int:
        """Threads that its command may use."""
        return int(self.command[self.command.index("--threads") + 1]) if "--threads" in self.command else 1


def ask_snakemake(configfile: Path, cores: int, folder: Path = Path()) -> subprocess.Popen:
    """Starts a Snakemake that lists the jobs of a settings file and runs none.

    Args:
        configfile: the settings file.
        cores: cores that the run may use.
        folder: where the run would take place.
    """
    snakefile = next((path.resolve() for path in SNAKEFILES if path.exists()), SNAKEFILES[-1])
    command = f"-m snakemake --detailed-summary --nolock --profile none --workflow-profile none --cores {cores}".split()
    command += ["--snakefile", str(snakefile), "--directory", str(folder), "--configfile", str(configfile.resolve())]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    return subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def read_jobs(snakemake: subprocess.Popen) -> list[Job]:
    """Waits for a Snakemake of `ask_snakemake` and returns the jobs that it lists.

    Raises:
        UserError: Snakemake refuses the settings or lacks an input.
    """
    table, messages = snakemake.communicate()
    if snakemake.returncode:
        raise UserError(f"Snakemake cannot plan these runs: {messages.strip()[-1500:]}")
    lines = table.splitlines()
    header = next((place for place, line in enumerate(lines) if line.startswith("output_file\t")), len(lines))
    rows: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in csv.DictReader(lines[header:], delimiter="\t", quoting=csv.QUOTE_NONE):
        rows.setdefault((row["rule"], row["shellcmd"] + row["log-file(s)"]), []).append(row)
    return [_job(rule, files) for (rule, _), files in rows.items()]


def _job(rule: str, files: list[dict[str, str]]) -> Job:
    """A job from its lines, one line per output."""
    command = re.split(r"\s>\s*\S*log", files[0]["shellcmd"])[0]
    outputs = tuple(row["output_file"] for row in files)
    return Job(
        rule=rule,
        run=Path(outputs[0]).parts[1],
        command=tuple(shlex.split(command)),
        inputs=tuple(files[0]["input-file(s)"].split(",")),
        outputs=outputs,
        done=all(row["plan"] == "no update" for row in files),
    )
