"""What Snakemake says that it would do."""

import re
from pathlib import Path

from support import snakemake


def planned(output: str) -> dict[str, int]:
    """Rule to the number of its jobs in a dry run; empty if there is nothing to do."""
    table = re.search(r"^Job stats:\njob +count\n[- ]+\n(.*?)^total ", output, re.M | re.S)
    return {line.split()[0]: int(line.split()[1]) for line in table[1].splitlines()} if table else {}


def jobs_to_do(directory: Path, configfile: Path, *arguments: str) -> dict[str, int]:
    """Does a dry run, which succeeds. Returns what is `planned`."""
    dry = snakemake(directory, configfile, "-n", *arguments)
    assert dry.returncode == 0, dry.stderr
    return planned(dry.stdout + dry.stderr)
