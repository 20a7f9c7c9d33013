"""The main numbers of a run in plain sentences."""

from ffkv.base.settings import intervenes
from ffkv.run.report.interventions import nats
from ffkv.run.report.text import change
from ffkv.run.report.wording import course, rows, weighted_mean
from ffkv.run.results.run import Run
from ffkv.run.results.text import number, percent


def summary(run: Run, control: Run | None = None) -> list[str]:
    """One paragraph per question: keys, tokens of the trigger examples, values, composition, refinement, interventions."""
    paragraphs = [_keys(run), _removal(run), _values(run), _composition(run), _refinement(run)]
    paragraphs += [_intervention(run)] if intervenes(run.settings) else []
    return paragraphs + ([_control(run, control)] if control is not None else [])


def _keys(run: Run) -> str:
    patterns = run.table("figure_2_pattern_counts")
    trigger, random = rows(patterns, sample="trigger"), rows(patterns, sample="random")
    with_pattern, by_chance = (
        table["keys_with_pattern"].sum() / max(table["keys"].sum(), 1) for table in (trigger, random)
    )
    examples = rows(run.table("figure_2_categories"), sample="trigger")
    shallow, semantic = (
        examples[examples["category"].isin([family, "shallow and semantic"])]
        .groupby("layer")["share"]
        .sum()
        .reset_index()
        for family in ("shallow", "semantic")
    )
    return (
        f"Of {number(trigger['keys'].sum())} keys, {percent(with_pattern)} have a pattern in their trigger examples "
        f"(in random prefixes: {percent(by_chance)}). Share of trigger examples with a shallow pattern: "
        f"{course(shallow, 'share')}. Share with a semantic pattern: {course(semantic, 'share')}."
    )


def _removal(run: Run) -> str:
    removal = run.table("figure_3_removal")
    last, first = (weighted_mean(rows(removal, removed=removed), "change", "keys") for removed in ("last", "first"))
    return (
        f"When the last token of a trigger example is removed, the coefficient of its key changes by {change(last)} on "
        f"average. When the first token is removed, it changes by {change(first)}."
    )


def _values(run: Run) -> str:
    agreement = run.table("figure_4_agreement")
    own, permuted = rows(agreement, source="trigger"), rows(agreement, source="permuted")
    rate, baseline = (percent(weighted_mean(table, "rate", "keys")) for table in (own, permuted))
    return (
        f"For {rate} of {number(own['keys'].sum())} memories, the top token of the value is the token that follows the "
        f"key's strongest trigger example (with keys permuted: {baseline}). Per layer: {course(own, 'rate')}."
    )


def _composition(run: Run) -> str:
    no_agreement = rows(run.table("figure_8_no_agreement"), reading="active")
    return (
        "Median share of a layer's memories that a prefix activates: "
        f"{course(run.table('figure_7_active_memories'), 'median')}. Share of prefixes in which no active memory "
        f"predicts the token that the layer predicts: {course(no_agreement, 'share')}."
    )


def _refinement(run: Run) -> str:
    breakdown = rows(run.table("figure_11_breakdown"), layer=len(run.anatomy.layers) - 1).set_index("case")["share"]
    unchanged = breakdown["residual"] + breakdown["agreement"]
    return (
        "Share of prefixes in which the residual already predicts the model's prediction: "
        f"{course(run.table('figure_9_residual_agreement'), 'share')}. The last feed-forward layer changes the "
        f"prediction in {percent(1 - unchanged)} of prefixes: to its own prediction in {percent(breakdown['ffn'])}, to a "
        f"third token in {percent(breakdown['composition'] + breakdown['other'])}."
    )


def _intervention(run: Run) -> str:
    total = rows(run.table("interventions_by_layer"), reach="total", side="positive")
    own, others = (rows(total, source=source) for source in ("own", "random_memories"))
    effect, control = (weighted_mean(table, "mean", "memories") for table in (own, others))
    return (
        "When a memory is removed from its trigger examples, the log-probabilities of its value's top tokens change by "
        f"{nats(effect)} on average (vectors of equal length along other memories: {nats(control)}). The effect is "
        f"the memory's own in {number(own['significant'].sum())} of {number(own['memories'].sum())} memories."
    )


def _control(run: Run, control: Run) -> str:
    """The main numbers of a run beside those of its control."""
    pairs = [
        f"{what}: {percent(own)}, {percent(its)} in the control"
        for what, own, its in (
            (what, write(run), write(control))
            for what, write in (
                ("keys with a pattern", _share_with_pattern),
                ("values that predict what follows their key", _agreement),
                ("prefixes whose residual predicts the model's prediction in the last layer", _last_residual),
            )
        )
    ]
    weights = " with random weights" if control.anatomy.weights == "random" else ""
    return f"Beside the control run {control.name}{weights}: {'; '.join(pairs)}."


def _share_with_pattern(run: Run) -> float:
    table = rows(run.table("figure_2_pattern_counts"), sample="trigger")
    return table["keys_with_pattern"].sum() / max(table["keys"].sum(), 1)


def _agreement(run: Run) -> float:
    return weighted_mean(rows(run.table("figure_4_agreement"), source="trigger"), "rate", "keys")


def _last_residual(run: Run) -> float:
    return float(run.table("figure_9_residual_agreement")["share"].iloc[-1])
