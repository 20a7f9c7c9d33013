"""What Snakemake says that it would do."""

import re


def planned(output: str) -> dict[str, int]:
    """Rule to the number of its jobs in a dry run; empty if there is nothing to do."""
    table = re.search(r"^Job stats:\njob +count\n[- ]+\n(.*?)^total ", output, re.M | re.S)
    return {line.split()[0]: int(line.split()[1]) for line in table[1].splitlines()} if table else {}
