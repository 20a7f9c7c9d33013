"""Bars, histograms and the signed scale. Colours are classes of the style sheet: pages may not set styles themselves."""

from collections.abc import Iterable

import numpy as np
from markupsafe import Markup

from ffkv.run.results.text import number

STEPS = 8  # of the scale on each side of zero
BIN = Markup(
    '<g><title>{}: {} prefixes</title><rect x="{}" y="{:.1f}" width="36" height="{:.1f}" class="{}"/>'
    '<text x="{}" y="87">{}</text></g>'
)


def step(value: float, largest: float) -> str:
    """Returns the class of a value on the signed scale: `p1` to `p8` above zero, `n1` to `n8` below, `zero`.

    `largest`: the value, without sign, at the end of the scale.
    """
    if not np.isfinite(value) or not largest > 0:
        return "zero"
    height = min(STEPS, int(np.ceil(STEPS * abs(value) / largest - 1e-9)))
    return "zero" if height == 0 else f"{'p' if value > 0 else 'n'}{height}"


def level(share: float) -> str:
    """Returns the class of a share on a scale from 0 to 1: `q0` to `q8`."""
    return f"q{min(STEPS, max(0, round(STEPS * share)))}" if np.isfinite(share) else "q0"


def bar(share: float) -> Markup:
    """Returns a horizontal bar; the number stands beside it."""
    width = 100 * min(1.0, max(0.0, float(share))) if np.isfinite(share) else 0
    return Markup(
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{width:.2f}" height="10"/></svg>'
    )


def signed_bar(value: float, largest: float) -> Markup:
    """Returns a bar to the right of the middle for a positive value, to the left for a negative one."""
    half = 50 * min(1.0, abs(value) / largest) if largest > 0 and np.isfinite(value) else 0
    return Markup(
        '<svg class="bar {}" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        '<line x1="50" x2="50" y1="0" y2="10"/><rect x="{:.2f}" width="{:.2f}" height="10"/></svg>'
    ).format("less" if value < 0 else "more", 50 - half if value < 0 else 50, half)


def histogram(lows: Iterable[float], counts: Iterable[int]) -> Markup:
    """Returns the histogram of a coefficient with logarithmic heights and a word for each bin, which is read out."""
    lows, counts = list(lows), list(counts)
    shown = max((place for place, count in enumerate(counts) if count), default=0) + 1
    tallest = max(np.log1p(max(counts)), 1)
    parts, told = [], []
    for place, (low, count) in enumerate(zip(lows[:shown], counts)):
        height = 70 * float(np.log1p(count)) / tallest
        label = "≤ 0" if low < 0 else f"{low:.3g}"
        left, look = 40 * place, "rests" if low < 0 else "fires"
        parts.append(BIN.format(label, number(count), left, 74 - height, height, look, left + 18, label))
        told.append(f"{label}: {number(count)}")
    label = "Prefixes by coefficient, each bin by its lower end. " + "; ".join(told)
    return Markup('<svg class="histogram" role="img" aria-label="{}" viewBox="0 0 {} 92">{}</svg>').format(
        label, 40 * max(shown, 8), Markup("").join(parts)
    )
