"""The first screen of the page: what was read, the claims of the paper with their verdicts, and their curves."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure as Drawing

from ffkv.base.settings import EMBEDDED
from ffkv.run.report import drawing, svg
from ffkv.run.report.claims import ITSELF, NOT_OF_PAPER, Claim, Judged
from ffkv.run.report.curve import LOOK
from ffkv.run.report.registry import has_figure
from ffkv.run.report.section import paper_numbers
from ffkv.run.report.verdicts import FAILS, HOLDS, UNKNOWN, UNTRAINED, Estimate, known
from ffkv.run.report.wording import PAPER_LAYERS
from ffkv.run.results.run import Run
from ffkv.run.results.text import NO_BREAK_SPACE, number, percent, points, visible

PACKAGE = "package:"  # in front of a path inside an installed package
FILES_NAMED = 2  # of a longer list of files the others are counted
NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
# What is said of one claim with a verdict, and of several.
SAID = {
    HOLDS: ("holds", "hold"),
    FAILS: ("does not hold", "do not hold"),
    UNTRAINED: ("holds in the untrained model, too", "hold in the untrained model, too"),
    UNKNOWN: ("cannot be told", "cannot be told"),
}
FEW = 32  # layers that have a mark each in a small drawing


def read_line(run: Run) -> Markup:
    """Says what the model is, how many tokens of which text it read, and when the tables were made."""
    tokens = sum(int(about["tokens"]) for about in run.files.corpora.values())
    made = max(path.stat().st_mtime for path in run.files.table_files.values())
    date, its = datetime.fromtimestamp(made, UTC), run.anatomy
    layers = "1 layer" if len(its.layers) == 1 else f"{len(its.layers)} layers"
    return Markup("{}, {}, read {} tokens of {}. Run {}, {} {:%B %Y}.").format(
        its.architecture, layers, number(tokens), visible(corpus_name(run)), run.name, date.day, date
    )


def model_name(run: Run) -> str:
    """Returns the name by which people know the model: of a GGUF file, of a repository of the hub, or of a folder."""
    settings, anatomy = run.settings.model, run.anatomy
    if settings.checkpoint == EMBEDDED:
        name = "the small GPT-2 that ffkv trains" + (", tuned" if run.settings.embedded.tuned_from else "")
    elif anatomy.gguf:
        name = Path(anatomy.gguf).stem
    elif anatomy.commit:
        name = settings.checkpoint + (f" ({settings.revision})" if settings.revision != "main" else "")
    else:
        name = _folder_name(settings.checkpoint.removeprefix(PACKAGE))
    adapter = f" with {_folder_name(settings.adapter)}" if settings.adapter else ""
    random = " with random weights" if anatomy.weights == "random" else ""
    through = " through dictionaries" if run.settings.dictionary.path else " cut to the largest memories"
    return name + adapter + random + through * bool(anatomy.dictionaries)


def _folder_name(path: str) -> str:
    """Returns the name of a folder. The hub's cache calls a repository models--owner--name/snapshots/commit."""
    of_hub = [part for part in Path(path).parts if part.startswith("models--")]
    return of_hub[-1].removeprefix("models--").replace("--", "/") if of_hub else Path(path).absolute().name


def corpus_name(run: Run) -> str:
    """Returns the name of the text: `corpus.title`, or else that of a data set of the hub, or of its files."""
    corpus = run.settings.corpus
    if corpus.title:
        return corpus.title
    if corpus.dataset == EMBEDDED:
        return "the documentation of the Python library"
    if corpus.dataset != "files":
        return corpus.dataset + (f" ({corpus.config})" if corpus.config != "default" else "")
    names = [*dict.fromkeys(map(_file_name, corpus.train + corpus.validation))]
    more = len(names) - FILES_NAMED
    return ", ".join(names[:FILES_NAMED]) + (f" and {more} more" if more > 0 else "")


def _file_name(path: str) -> str:
    name = Path(path).name
    return f"{name} ({Path(path.removeprefix(PACKAGE)).parts[0]})" if path.startswith(PACKAGE) else name


def sum_of_claims(judged: Sequence[Judged]) -> str:
    """Says how many claims have each verdict: "Of eight claims, three hold, and five cannot be told." """
    counts = Counter(each.verdict for each in judged)
    if any(each.reason == ITSELF for each in judged):
        return f"{ITSELF} Of {NUMBERS[len(judged)]} claims, {NUMBERS[counts[UNTRAINED]]} {SAID[HOLDS][counts[UNTRAINED] > 1]} without training."
    parts = [f"{NUMBERS[counts[one]]} {SAID[one][counts[one] > 1]}" for one in SAID if counts[one] or one == HOLDS]
    return f"Of {NUMBERS[len(judged)]} claims, {', '.join(parts[:-1])}{', and ' if parts[1:] else ''}{parts[-1]}."


def rows_of_claims(judged: Sequence[Judged], run: Run) -> list[dict[str, str]]:
    """Returns what the page shows of each claim: words, figure, numbers as text, verdict, class, reason."""
    return [
        {
            "words": _words(each.claim),
            "mark": "" if len(each.claim.paper(paper_numbers())) else "not of the paper",
            "figure": each.claim.figure if has_figure(run, each.claim.figure) else "",
            "paper": _number(each, each.paper),
            "own": _number(each, each.own),
            "interval": _interval(each),
            "ratio": percent(each.own.value / each.paper.value) if each.claim.is_trend else "–",
            "control": _number(each, each.control or Estimate()),
            "verdict": each.verdict,
            "class": each.verdict.replace(" ", "-"),
            "reason": each.reason,
        }
        for each in judged
    ]


def _words(claim: Claim) -> str:
    """Returns what a claim says, without the mark that it is not of the paper: the page writes it beside."""
    words = claim.words.removeprefix(NOT_OF_PAPER)
    return words[:1].upper() + words[1:]


def _number(judged: Judged, estimate: Estimate) -> str:
    write = judged.claim.write
    if np.isnan(estimate.lower):
        return write(estimate.value)
    return f"{write(estimate.lower)} → {write(estimate.upper)}"


def _interval(judged: Judged) -> str:
    """Returns the run's interval; of a trend that of the difference, which stands in front of it."""
    own, write = judged.own, judged.claim.write
    if np.isnan(own.low):
        return ""
    if np.isnan(own.lower):
        # With one more digit, because a limit such as 50 % may be near.
        ends = [percent(end, 3) if write is percent else write(end) for end in (own.low, own.high)]
        return " to ".join(ends)
    value, low, high = (points(end).partition(NO_BREAK_SPACE)[0] for end in own[:3])
    return f"{value} ({low} to {high}) points"


def overview_svg(judged: Sequence[Judged], run: Run, control: Run | None = None) -> str:
    """Returns the small drawings as an `svg` element."""
    said = "; ".join(f"{each.claim.words}: {_number(each, each.own)}, {each.verdict}" for each in judged)
    with drawing.look():
        return svg.write_svg(draw_overview(judged, run, control), "overview", "The claims over the layers", said)


def draw_overview(judged: Sequence[Judged], run: Run, control: Run | None = None) -> Drawing:
    """Draws a small panel for each claim that has a course over the layers: the run, its control, the paper."""
    shown = [each.claim for each in judged if each.claim.panel and has_figure(run, each.claim.figure)]
    figure = Drawing(figsize=(10, 1.75), layout="constrained")
    panels, layers = figure.subplots(1, len(shown), squeeze=False)[0], len(run.anatomy.layers)
    for axes, claim in zip(panels, shown, strict=True):
        if run.settings.report.paper_curves and layers > 1:
            x = np.linspace(0, layers - 1, PAPER_LAYERS)
            axes.plot(x, claim.paper(paper_numbers()), color=drawing.PAPER_COLOUR, linewidth=0.9, label="the paper")
        if control is not None and has_figure(control, claim.figure):
            axes.plot(claim.course(control).values, **LOOK | {"marker": ""}, label=f"control: {control.name}")
        course, colour = claim.course(run), drawing.colours(3)[1]
        shares, measured = course.values, known(course)
        chance = np.broadcast_to(course.chance, len(shares))[measured]
        ends = np.array([course.part(measured[at : at + 1]) for at in range(len(measured))]).reshape(-1, 3)
        axes.fill_between(measured, ends[:, 1] + chance, ends[:, 2] + chance, color=colour, alpha=0.2, linewidth=0)
        marker = "o" if len(measured) <= FEW else ""
        axes.plot(measured, shares[measured], marker=marker, ms=2, color=colour, linewidth=1.4, label="this run")
        drawing.small_panel(axes, claim.panel, layers)
    drawing.legend(figure, panels[0])
    return figure
