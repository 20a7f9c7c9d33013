"""The claims of the paper: what each one says, from which table it is judged, and what the paper's own numbers give."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ffkv.base.files.columns import number, table, text, word
from ffkv.base.lookup import is_dir
from ffkv.base.multiple_tests import SIGNIFICANT
from ffkv.run.report.control import open_control
from ffkv.run.report.drawing import shares_by
from ffkv.run.report.registry import has_figure
from ffkv.run.report.section_keys import CATEGORIES
from ffkv.run.report.section_refinement import CASES
from ffkv.run.report.sections import paper_numbers
from ffkv.run.report.verdicts import (
    FAILS,
    HOLDS,
    LEAST,
    UNKNOWN,
    UNTRAINED,
    Course,
    Estimate,
    Medians,
    Rule,
    Shares,
    judge,
    known,
    level,
    trend,
    turn,
)
from ffkv.run.report.wording import rows
from ffkv.run.results.run import Run, check_run

Paper = Mapping[str, Any]  # the numbers of the paper's figures
DETAILS = "keys/by_prefix"  # the categories of all trigger examples of the sampled keys
MANY_KEYS = 40  # from which on their spread is known
MOST, EARLY = 0.5, 0.25  # limits: "most" is more than half; for "early" the paper says "a third"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper."""

    name: str  # its name in tables
    words: str  # what the paper says
    figure: str  # the figure that shows its numbers
    course: Callable[[Run], Course]  # its numbers, by layer
    estimate: Callable[[Course], Estimate]  # the number that it is judged by
    paper: Callable[[Paper], Sequence[float] | np.ndarray]  # the paper's numbers, by layer; empty if the paper has none
    sign: int = 1  # see `Rule`
    limit: float = 0.0  # see `Rule`
    panel: str = ""  # title of its small drawing; "" if its numbers are not drawn over the layers

    @property
    def is_trend(self) -> bool:
        """Whether it compares the upper half of the layers with the lower half."""
        return self.estimate is trend

    def of_paper(self, paper: Paper) -> Estimate:
        """Returns the paper's number, without an interval."""
        values = np.asarray(self.paper(paper), float)
        found = self.estimate(Shares(values, np.ones(len(values)))) if len(values) else Estimate()
        return Estimate(found.value, lower=found.lower, upper=found.upper)


def by_layer(table: pd.DataFrame, column: str, run: Run) -> np.ndarray:
    """Returns a column [layer] of a table with one row per layer; NaN for layers that the table does not have."""
    return table.set_index("layer")[column].reindex(range(len(run.anatomy.layers))).to_numpy(float)


def counts(table: pd.DataFrame, column: str, run: Run) -> np.ndarray:
    """Returns a column of counts, as `by_layer`, with 0 for layers that the table does not have."""
    return np.nan_to_num(by_layer(table, column, run))


def _patterns(family: str) -> Callable[[Run], Shares]:
    def course(run: Run) -> Shares:
        examples = rows(run.table("figure_2_categories"), sample="trigger")
        shares = shares_by(examples, "category", CATEGORIES, len(run.anatomy.layers))
        keys = counts(rows(run.table("figure_2_pattern_counts"), sample="trigger"), "keys", run)
        both = shares["shallow and semantic"]
        return Shares(shares[family] + both, keys, spread=_spread_of_keys(run, family))

    return course


def _spread_of_keys(run: Run, family: str) -> float:
    """Returns how much the shares of keys vary, of the most that they can.

    It is 1 if a key has a pattern in all its trigger examples or in none. Few keys do not show it, and tables alone do
    not have it: then it counts as 1, which makes intervals too long.
    """
    if not is_dir(run.folder / DETAILS):
        return 1.0
    examples = rows(run.files.details(DETAILS), sample="trigger")
    has = examples["category"].isin([family, "shallow and semantic"])
    of_keys = has.groupby([examples["layer"], examples["memory"]]).mean().groupby("layer")
    degrees, mean = of_keys.size() - 1, of_keys.mean()
    most = (degrees * mean * (1 - mean)).sum()
    if degrees.sum() < MANY_KEYS or most == 0:
        return 1.0
    least = of_keys.size().sum() / len(examples)  # as if trigger examples of a key had nothing in common
    return float(np.clip((degrees * of_keys.var().fillna(0)).sum() / most, least, 1))


def _agreement(run: Run) -> Shares:
    own, permuted = (rows(run.table("figure_4_agreement"), source=source) for source in ("trigger", "permuted"))
    return Shares(by_layer(own, "rate", run), counts(own, "keys", run), chance=counts(permuted, "rate", run))


def _no_memory(run: Run) -> Shares:
    table = rows(run.table("figure_8_no_agreement"), reading="active")
    return Shares(by_layer(table, "share", run), counts(table, "prefixes", run), same=True)


def _decided(run: Run) -> Shares:
    table = run.table("figure_9_residual_agreement")
    return Shares(by_layer(table, "share", run), counts(table, "prefixes", run), same=True)


def _sharpness(run: Run) -> Medians:
    table = run.table("figure_10_final_probability")
    spread = by_layer(table, "q3", run) - by_layer(table, "q1", run)
    return Medians(by_layer(table, "median", run), counts(table, "prefixes", run), spread)


def _compositions(run: Run) -> Shares:
    table = run.table("figure_11_breakdown")
    cases = {case: counts(rows(table, case=case), "prefixes", run) for case in CASES}
    changes = cases["composition"] + cases["ffn"] + cases["other"]
    return Shares(cases["composition"] / np.maximum(changes, 1), changes)


def _causes(run: Run) -> Shares:
    table = rows(run.table("intervention_memories"), reach="total", side="positive")
    found = table.assign(causes=(table["q_value"] <= SIGNIFICANT) & (table["own"] < 0)).groupby("layer")["causes"]
    of_layer = pd.DataFrame({"share": found.mean(), "memories": found.size()}).reset_index()
    return Shares(by_layer(of_layer, "share", run), counts(of_layer, "memories", run))


def _all(course: Course) -> Estimate:
    return level(course, known(course))


def _middle(course: Course) -> Estimate:
    """Returns the number of the last layer of the lower half."""
    below = len(course.values) // 2
    return level(course, np.array([below - 1])) if below >= LEAST else trend(course)


def _last(course: Course) -> Estimate:
    return level(course, np.array([len(course.values) - 1]))


def _changed_to_third(paper: Paper) -> np.ndarray:
    composition, ffn = (np.array(paper["figure_11"][case]) for case in ("composition", "ffn"))
    return composition / (composition + ffn)


def _families(family: str) -> Callable[[Paper], np.ndarray]:
    return lambda paper: np.add(paper["figure_2"][family], paper["figure_2"]["shallow and semantic"])


CLAIMS = (
    Claim(
        "shallow_fall", "Shallow patterns fall over the layers", "figure_2", _patterns("shallow"), trend, _families("shallow"),
        sign=-1, panel="shallow patterns",
    ),
    Claim(
        "semantic_rise", "Semantic patterns rise over the layers", "figure_2", _patterns("semantic"), trend,
        _families("semantic"), panel="semantic patterns",
    ),
    Claim(
        "agreement_rises", "Agreement, beyond permuted keys, rises in upper layers", "figure_4",
        _agreement, trend, lambda paper: paper["figure_4"], panel="agreement",
    ),
    Claim(
        "no_single_memory", "Most predictions of layers are no single memory’s", "figure_8", _no_memory, _all,
        lambda paper: paper["figure_8"], limit=MOST, panel="no single memory’s",
    ),
    Claim(
        "decided_early", "Residuals decide early: by the middle layer", "figure_9", _decided, _middle,
        lambda paper: paper["figure_9"], limit=EARLY, panel="residual decides",
    ),
    Claim(
        "sharpened", "Residuals sharpen: the probability of the prediction rises", "figure_10", _sharpness, trend,
        lambda paper: paper["figure_10"], panel="its probability",
    ),
    Claim(
        "last_layer_composes", "Most changes of the last layer are compositions", "figure_11", _compositions, _last,
        _changed_to_third, limit=MOST,
    ),
    Claim(
        "values_cause", "Most values cause what they promote: removal lowers it", "interventions", _causes, _all,
        lambda paper: (), limit=MOST,
    ),
)  # fmt: skip
VERDICTS = table(
    "reports/<run>/verdicts.csv",
    "A claim of the paper. A number of a trend is that of the upper half of the layers minus that of the lower half.",
    word("claim", "name of the claim", *(claim.name for claim in CLAIMS)),
    text("words", "what the paper says"),
    word("figure", "the figure that shows the numbers"),
    number("paper", "the paper's number; NaN if it has none"),
    number("value", "the number of the run; NaN if there is none"),
    number("low", "lower end of its interval (95 %)"),
    number("high", "upper end"),
    number("lower_half", "of a trend: the number of the lower half, less that by chance; else NaN"),
    number("upper_half", "that of the upper half"),
    number("control", "the number of the same model untrained; NaN without such a control"),
    number("control_low", "lower end of its interval (95 %)"),
    number("control_high", "upper end"),
    word("verdict", "the verdict", HOLDS, FAILS, UNTRAINED, UNKNOWN),
    text("reason", "the reason, in a sentence"),
)


@dataclass(frozen=True)
class Judged:
    """A claim with what a run says about it."""

    claim: Claim
    paper: Estimate
    own: Estimate
    control: Estimate | None  # of the same model untrained; None if there is none
    verdict: str
    reason: str  # why, in sentences


def judge_claims(run: Run, control: Run | None = None) -> list[Judged]:
    """Judges all claims. A control counts if its weights are random."""
    if control is not None and control.anatomy.weights != "random":
        control = None
    return [_judge(claim, run, control) for claim in CLAIMS]


def _judge(claim: Claim, run: Run, control: Run | None) -> Judged:
    of_paper = claim.of_paper(paper_numbers())
    if not has_figure(run, claim.figure):
        own = Estimate(problem="The run does not measure it.")
        return Judged(claim, of_paper, own, None, *judge(Rule(), own))
    course = claim.course(run)
    own = claim.estimate(course)
    its = (
        claim.estimate(_beside(course, claim.course(control)))
        if control and has_figure(control, claim.figure)
        else None
    )
    rule = Rule(claim.sign, claim.limit, of_paper.value if claim.is_trend else np.nan)
    verdict, reason = judge(rule, own, its)
    if verdict == HOLDS and run.anatomy.weights == "random":
        verdict, reason = UNTRAINED, "This run is of an untrained model itself."
    if claim.is_trend and (layer := turn(course, claim.sign)) is not None:
        reason += f" It {'falls' if claim.sign > 0 else 'rises'} again after layer {layer}."
    return Judged(claim, of_paper, own, its, verdict, reason)


def _beside(course: Course, its: Course) -> Course:
    """Returns a control's course. A pattern that none of its keys has is taken to vary as it does in the run."""
    if isinstance(course, Shares) and isinstance(its, Shares) and not np.nan_to_num(its.values).any():
        return replace(its, spread=course.spread)
    return its


def verdicts(run: Run, control: Run | None = None) -> pd.DataFrame:
    """Says which claims of the paper hold in a run, by the rules of docs/definitions.md.

    Args:
        run: the run, from `ffkv.open`.
        control: a run of the same model with random weights. By default it is the run that `report.control` names, if
            the settings name one.
    Returns:
        A row per claim, with the columns of `verdicts.csv` in docs/formats.md.
    Raises:
        UserError: `run` is no run, a table of one of the runs is missing, or the control has another number of layers.
    Examples:
        >>> ffkv.verdicts(ffkv.open("results/tiny")).query("claim == 'shallow_fall'")["verdict"].item()
        'cannot say'
    """
    check_run(run)
    return as_table(judge_claims(run, control or open_control(run)))


def as_table(judged: Sequence[Judged]) -> pd.DataFrame:
    """Returns judged claims as the table `VERDICTS`."""
    none = Estimate()
    return VERDICTS.frame(
        [
            (
                *(each.claim.name, each.claim.words, each.claim.figure, each.paper.value),
                *(*each.own[:5], *(each.control or none)[:3], each.verdict, each.reason),
            )
            for each in judged
        ]
    )
