"""Which rules need more memory than the profile for SLURM asks for."""

import re
from pathlib import Path
from typing import Any

import yaml

from ffkv.base.terminal import in_bytes
from ffkv.workflow import ROOT

OWN, SHIPPED = Path("profiles/slurm/profile.yaml"), ROOT / "profiles/slurm"


def profile_memory(path: Path) -> tuple[dict[str, float], float]:
    """Bytes that a profile in YAML asks for at the first attempt: by rule, and for all other rules."""

    def first_attempt(resources: dict[str, Any]) -> float:  # mem_mb is a number, or an expression that begins with one
        found = re.match(r"\d+", str(resources.get("mem_mb", "")))
        return float(found[0]) * 1e6 if found else 0.0

    profile = yaml.safe_load(path.read_text()) or {}
    rules = {rule: first_attempt(resources) for rule, resources in (profile.get("set-resources") or {}).items()}
    return rules, first_attempt(profile.get("default-resources") or {})


def tell_shortages(rows: list[dict[str, Any]]) -> list[str]:
    """Names the rules that need more memory per job than the profile for SLURM asks for, in one line if there are any.

    Args:
        rows: what is left to do, with "rule" and "memory" in bytes. Rules that are done need nothing.
    """
    path = OWN if OWN.exists() else SHIPPED / OWN.name
    rules, other = profile_memory(path)
    needs: dict[str, float] = {}
    for row in rows:
        needs[row["rule"]] = max(needs.get(row["rule"], 0.0), row["memory"])
    short = [
        f"{rule} {in_bytes(need)} ({in_bytes(asked)})"
        for rule, need in needs.items()
        if 0 < (asked := rules.get(rule, other)) < need
    ]
    told = f"SLURM: these rules need more memory than {path} asks for at first (in brackets)"
    return [f"{told}: {', '.join(short)}."] if short else []
