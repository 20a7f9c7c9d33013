"""The claims of the paper: what each one says, from which table it is judged, and what the paper's own numbers give."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import quantile_test

from ffkv.base.files.columns import bounds, number, table, text, word
from ffkv.base.lookup import is_dir
from ffkv.branches.composition.section import none_agrees
from ffkv.branches.intervention.section import nats
from ffkv.branches.keys.section import CATEGORIES
from ffkv.branches.refinement.section import CASES
from ffkv.run.report import verdicts as rules
from ffkv.run.report.drawing import shares_by
from ffkv.run.report.registry import has_figure
from ffkv.run.report.section import open_control, paper_numbers
from ffkv.run.report.wording import rows
from ffkv.run.results.run import Run, check_run
from ffkv.run.results.text import percent

Paper = Mapping[str, Any]  # the numbers of the paper's figures
OF_KEYS = "keys/by_prefix"  # the categories of all trigger examples of the sampled keys
COMPOSED, REFINED = "composition/by_prefix", "refinement/by_prefix"  # numbers of each sampled prefix
NOT_OF_PAPER = "Not of the paper: "  # in front of what such a claim says
ITSELF = "This run is of an untrained model itself."  # the reason of a verdict
MANY_KEYS = 40  # from which on their spread is known
MOST, EARLY = 0.5, 0.25  # limits: "most" is more than half; for "early" the paper says "a third"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, or another one that is judged beside them."""

    name: str  # its name in tables
    words: str  # what it says
    figure: str  # the figure that shows its numbers
    course: Callable[[Run], rules.Course]  # its numbers, by layer
    estimate: Callable[[rules.Course], rules.Estimate]  # the number that it is judged by
    # the paper's numbers, by layer; empty if it is no claim of the paper
    paper: Callable[[Paper], Sequence[float] | np.ndarray]
    sign: int = 1  # see `Rule`
    limit: float = 0.0  # see `Rule`
    untrained: str = ""  # why untrained models are known to fulfil it, as a sentence; "" if they are not
    write: Callable[[float], str] = percent  # how its numbers are written
    panel: str = ""  # title of its small drawing; "" if its numbers are not drawn over the layers

    @property
    def is_trend(self) -> bool:
        """Whether it compares the upper half of the layers with the lower half."""
        return self.estimate is rules.trend

    def of_paper(self, paper: Paper) -> rules.Estimate:
        """Returns the paper's number, without an interval."""
        values = np.asarray(self.paper(paper), float)
        found = self.estimate(rules.Shares(values, np.ones(len(values)))) if len(values) else rules.Estimate()
        return rules.Estimate(found.value, lower=found.lower, upper=found.upper)


def by_layer(table: pd.DataFrame, column: str, run: Run) -> np.ndarray:
    """Returns a column [layer] of a table with one row per layer; NaN for layers that the table does not have."""
    return table.set_index("layer")[column].reindex(range(len(run.anatomy.layers))).to_numpy(float)


def counts(table: pd.DataFrame, column: str, run: Run) -> np.ndarray:
    """Returns a column of counts, as `by_layer`, with 0 for layers that the table does not have."""
    return np.nan_to_num(by_layer(table, column, run))


def _patterns(family: str) -> Callable[[Run], rules.Shares]:
    def course(run: Run) -> rules.Shares:
        examples = rows(run.table("figure_2_categories"), sample="trigger")
        shares = shares_by(examples, "category", CATEGORIES, len(run.anatomy.layers))
        keys = counts(rows(run.table("figure_2_pattern_counts"), sample="trigger"), "keys", run)
        both = shares["shallow and semantic"]
        return rules.Shares(shares[family] + both, keys, spread=_spread_of_keys(run, family))

    return course


def _spread_of_keys(run: Run, family: str) -> float:
    """Returns how much the shares of keys vary, of the most that they can.

    It is 1 if a key has a pattern in all its trigger examples or in none. Few keys do not show it, and tables alone do
    not have it: then it counts as 1, which makes intervals too long.
    """
    if not is_dir(run.folder / OF_KEYS):
        return 1.0
    examples = rows(run.files.details(OF_KEYS), sample="trigger")
    has = examples["category"].isin([family, "shallow and semantic"])
    of_keys = has.groupby([examples["layer"], examples["memory"]]).mean().groupby("layer")
    degrees, mean = of_keys.size() - 1, of_keys.mean()
    most = (degrees * mean * (1 - mean)).sum()
    if degrees.sum() < MANY_KEYS or most == 0:
        return 1.0
    least = of_keys.size().sum() / len(examples)  # as if trigger examples of a key had nothing in common
    return float(np.clip((degrees * of_keys.var().fillna(0)).sum() / most, least, 1))


def _agreement(run: Run) -> rules.Shares:
    own, permuted = (rows(run.table("figure_4_agreement"), source=source) for source in ("trigger", "permuted"))
    return rules.Shares(by_layer(own, "rate", run), counts(own, "keys", run), chance=counts(permuted, "rate", run))


def _no_memory(run: Run) -> rules.Course:
    """Returns the share of prefixes by layer. A prefix is in all layers, so it is the unit, with its mean over them.

    Tables alone do not have the prefixes: then the layers count as if they were alike, which makes the interval too long.
    """
    if is_dir(run.folder / COMPOSED):
        return rules.Means(none_agrees("agreeing").numbers(run), len(run.anatomy.layers), 0, 1)
    table = rows(run.table("figure_8_no_agreement"), reading="active")
    return rules.Shares(by_layer(table, "share", run), counts(table, "prefixes", run), same=True)


def _decided(run: Run) -> rules.Shares:
    table = run.table("figure_9_residual_agreement")
    return rules.Shares(by_layer(table, "share", run), counts(table, "prefixes", run))


def _sharpness(run: Run) -> rules.Medians:
    """Returns the medians, with intervals from the order of the numbers alone (Conover 1999), whatever their distribution.

    Tables alone do not have the numbers: then quartiles are the ends, which are far apart.
    """
    table = run.table("figure_10_final_probability")
    low, high = (by_layer(table, name, run) for name in ("q1", "q3"))
    if is_dir(run.folder / REFINED):
        of_layers = run.files.details(REFINED).groupby("layer")["probability"]
        ends = [(layer, *quantile_test(numbers).confidence_interval()) for layer, numbers in of_layers]
        known = pd.DataFrame(ends, columns=["layer", "low", "high"]).fillna({"low": 0, "high": 1})
        low, high = (by_layer(known, name, run) for name in ("low", "high"))
    return rules.Medians(by_layer(table, "median", run), counts(table, "prefixes", run), low, high)


def _compositions(run: Run) -> rules.Shares:
    table = run.table("figure_11_breakdown")
    cases = {case: counts(rows(table, case=case), "prefixes", run) for case in CASES}
    changes = cases["composition"] + cases["ffn"] + cases["other"]
    return rules.Shares(cases["composition"] / np.maximum(changes, 1), changes)


def _specific_effects(run: Run) -> rules.Means:
    """Returns the specific total effects of the removed memories. How many are significant depends on how many are tried."""
    table = rows(run.table("intervention_memories"), reach="total", side="positive").dropna(subset=["specific"])
    found = pd.DataFrame({"layer": table["layer"], "unit": range(len(table)), "value": table["specific"]})
    return rules.Means(found, len(run.anatomy.layers))


def _all(course: rules.Course) -> rules.Estimate:
    return rules.level(course, rules.known(course))


def _middle(course: rules.Course) -> rules.Estimate:
    below = len(course.values) // 2
    return rules.level(course, np.array([below - 1])) if below >= rules.LEAST else rules.Estimate(problem=rules.TOO_FEW)


def _changed_to_third(paper: Paper) -> np.ndarray:
    composition, ffn = (np.array(paper["figure_11"][case]) for case in ("composition", "ffn"))
    return composition / (composition + ffn)


def _families(family: str) -> Callable[[Paper], np.ndarray]:
    return lambda paper: np.add(paper["figure_2"][family], paper["figure_2"]["shallow and semantic"])


CLAIMS = (
    Claim(
        "shallow_fall", "Shallow patterns fall over the layers", "figure_2", _patterns("shallow"), rules.trend, _families("shallow"),
        sign=-1, panel="shallow patterns", untrained="In some untrained models, they fall, too.",
    ),
    Claim(
        "semantic_rise", "Semantic patterns rise over the layers", "figure_2", _patterns("semantic"), rules.trend,
        _families("semantic"), panel="semantic patterns",
    ),
    Claim(
        "agreement_rises", "Agreement, beyond permuted keys, rises in upper layers", "figure_4",
        _agreement, rules.trend, lambda paper: paper["figure_4"], panel="agreement",
    ),
    Claim(
        "no_single_memory", "Most predictions of layers are no single memory’s", "figure_8", _no_memory, _all,
        lambda paper: paper["figure_8"], limit=MOST, panel="no single memory’s",
        untrained="In an untrained model, hardly any value predicts what its layer predicts.",
    ),
    Claim(
        "decided_early", "Residuals decide early: by the middle layer", "figure_9", _decided, _middle,
        lambda paper: paper["figure_9"], limit=EARLY, panel="residual decides",
        untrained="Some untrained models predict their last token from the first layer on.",
    ),
    Claim(
        "sharpened", "Residuals sharpen: the probability of the prediction rises", "figure_10", _sharpness, rules.trend,
        lambda paper: paper["figure_10"], panel="its probability",
    ),
    Claim(
        "last_layer_composes", "Most changes of the last layer are compositions", "figure_11", _compositions,
        lambda course: rules.level(course, np.array([len(course.values) - 1])),
        _changed_to_third, limit=MOST,
        untrained="In an untrained model, nearly every change of a prediction is one to a third token.",
    ),
    Claim(
        "values_cause", f"{NOT_OF_PAPER}removal of a memory lowers what its value promotes, more than an equally long vector does",
        "interventions",
        _specific_effects, _all, lambda paper: (), sign=-1, write=nats,
        untrained="Random values promote their own top tokens, too, more than other values do.",
    ),
)  # fmt: skip
VERDICTS = table(
    "reports/<run>/verdicts.csv",
    "A claim. A number of a trend is that of the upper half of the layers minus that of the lower half. All are shares, but "
    "those of `values_cause`, which are in nats.",
    word("claim", "name of the claim", *(claim.name for claim in CLAIMS)),
    text("words", "what it says"),
    word("figure", "the figure that shows the numbers"),
    number("paper", "the paper's number; NaN if it is no claim of the paper"),
    number("value", "the number of the run; NaN if there is none"),
    *bounds(),
    number("lower_half", "of a trend: the number of the lower half, less that by chance; else NaN"),
    number("upper_half", "that of the upper half"),
    number("control", "the number of the same model untrained; NaN without such a control"),
    *bounds(name="control"),
    word("verdict", "the verdict", rules.HOLDS, rules.FAILS, rules.UNTRAINED, rules.UNKNOWN),
    text("reason", "the reason, in a sentence"),
)


@dataclass(frozen=True)
class Judged:
    """A claim with what a run says about it."""

    claim: Claim
    paper: rules.Estimate
    own: rules.Estimate
    control: rules.Estimate | None  # of the same model untrained; None if there is none
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
        own = rules.Estimate(problem="The run does not measure it.")
        return Judged(claim, of_paper, own, None, *rules.judge(rules.Rule(), own))
    course = claim.course(run)
    own = claim.estimate(course)
    its = None
    if control:
        its = rules.Estimate()
        if has_figure(control, claim.figure):
            its = claim.estimate(_beside(course, claim.course(control)))
    rule = rules.Rule(claim.sign, claim.limit, of_paper.value if claim.is_trend else np.nan)
    if run.anatomy.weights == "random":
        verdict, reason = rules.judge(rule, own)
        if verdict == rules.HOLDS:
            verdict, reason = rules.UNTRAINED, ITSELF
    else:
        verdict, reason = rules.judge(rule, own, its, claim.untrained)
    if claim.is_trend and (layer := rules.turn(course, claim.sign)) is not None:
        reason += f" It {'falls' if claim.sign > 0 else 'rises'} again after layer {layer}."
    return Judged(claim, of_paper, own, its, verdict, reason)


def _beside(course: rules.Course, its: rules.Course) -> rules.Course:
    """Returns a control's course. A pattern that none of its keys has is taken to vary as it does in the run."""
    if isinstance(course, rules.Shares) and isinstance(its, rules.Shares) and not np.nan_to_num(its.values).any():
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
    rows: list[tuple] = []
    for each in judged:
        numbers = each.paper.value, *each.own[:5], *(each.control or rules.Estimate())[:3]
        rows.append((each.claim.name, each.claim.words, each.claim.figure, *numbers, each.verdict, each.reason))
    return VERDICTS.frame(rows)
