"""What Snakemake says that it would do."""

import re
from pathlib import Path

from support import snakemake

TABLE = re.compile(r"^Job stats:\njob +count\n[- ]+\n(.*?)^total ", re.M | re.S)  # Snakemake's own
SHORT = re.compile(r"^\d+ jobs would run[^\n]*:\n(.*?)^Why:", re.M | re.S)  # `ffkv.workflow.dry_run`


def planned(output: str) -> dict[str, int]:
    """Rule to the number of its jobs in a run or in a dry run; empty if there is nothing to do."""
    if table := TABLE.search(output):
        return {line.split()[0]: int(line.split()[1]) for line in table[1].splitlines()}
    named = SHORT.search(output)
    return (
        {rule: int(count or 1) for rule, count in re.findall(r"(\w+)(?: x (\d+))?(?:,|$)", named[1].strip())}
        if named
        else {}
    )


def jobs_to_do(directory: Path, configfile: Path, *arguments: str) -> dict[str, int]:
    """Does a dry run, which succeeds. Returns what is `planned`."""
    dry = snakemake(directory, configfile, "-n", *arguments)
    assert dry.returncode == 0, dry.stderr
    return planned(dry.stdout + dry.stderr)
