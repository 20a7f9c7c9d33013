"""Numbers that only the report writes. `ffkv.run.results.text` has the others, and the text of the corpus."""

import pandas as pd

from ffkv.run.results.text import NO_BREAK_SPACE, number

MINUS = "\N{MINUS SIGN}"


def signed(value: float) -> str:
    """Returns a number that can be negative, with the minus sign of printed text."""
    return number(value).replace("-", MINUS)


def decimals(value: float) -> str:
    """Returns a number that can be negative with two decimals; a dash for NaN."""
    return "–" if pd.isna(value) else f"{value:.2f}".replace("-", MINUS)


def change(value: float) -> str:
    """Returns a change in per cent, with its sign; a dash for NaN."""
    return "–" if pd.isna(value) else f"{value:+.1f}{NO_BREAK_SPACE}%".replace("-", MINUS)


def duration(seconds: float) -> str:
    """Returns a time for a person: "41 s", "12 min 5 s", "3 h 20 min"."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{whole} s" if whole else "under 1 s"
