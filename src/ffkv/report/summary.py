"""The run's main numbers in plain sentences."""

from ffkv.report.captions import course, rows, weighted_mean
from ffkv.report.results import Results
from ffkv.report.text import change, number, percent


def summary(results: Results) -> list[str]:
    """One sentence or two for each question of the paper: keys, values, composition, refinement."""
    return [_keys(results), _removal(results), _values(results), _composition(results), _refinement(results)]


def _keys(results: Results) -> str:
    patterns = results.tables["keys/patterns"]
    trigger, random = (rows(patterns, sample=sample) for sample in ("trigger", "random"))
    with_pattern, by_chance = (
        table["keys_with_pattern"].sum() / max(table["keys"].sum(), 1) for table in (trigger, random)
    )
    examples = rows(results.tables["keys/categories"], sample="trigger")
    shallow, semantic = (
        examples[examples["category"].isin([family, "shallow and semantic"])]
        .groupby("layer")["share"]
        .sum()
        .reset_index()
        for family in ("shallow", "semantic")
    )
    return (
        f"Of {number(trigger['keys'].sum())} keys, {percent(with_pattern)} have a pattern in their trigger examples "
        f"(in random prefixes: {percent(by_chance)}). Trigger examples with a shallow pattern: "
        f"{course(shallow, 'share')}; with a semantic one: {course(semantic, 'share')}."
    )


def _removal(results: Results) -> str:
    removal = results.tables["keys/removal"]
    last, first = (weighted_mean(rows(removal, removed=removed), "change", "keys") for removed in ("last", "first"))
    return (
        f"Removing the last token of a trigger example changes its key's coefficient by {change(last)} on average, "
        f"removing the first by {change(first)}."
    )


def _values(results: Results) -> str:
    own, permuted = (rows(results.tables["values/agreement"], source=source) for source in ("trigger", "permuted"))
    rate, baseline = (percent(weighted_mean(table, "rate", "keys")) for table in (own, permuted))
    return (
        f"A value's top token is the token that follows its key's strongest trigger example for {rate} of "
        f"{number(own['keys'].sum())} memories ({baseline} with keys permuted): {course(own, 'rate')}."
    )


def _composition(results: Results) -> str:
    without = rows(results.tables["composition/agreement"], reading="active")
    return (
        "Share of a layer's memories that a prefix activates (median): "
        f"{course(results.tables['composition/active'], 'median')}. Share of prefixes in which no active memory "
        f"predicts what the layer predicts: {course(without, 'share')}."
    )


def _refinement(results: Results) -> str:
    breakdown = rows(results.tables["refinement/breakdown"], layer=results.layers - 1).set_index("case")["share"]
    unchanged = breakdown["residual"] + breakdown["agreement"]
    return (
        "Share of prefixes in which the residual already predicts what the model will: "
        f"{course(results.tables['refinement/residual'], 'share')}. The last feed-forward layer changes the "
        f"prediction in {percent(1 - unchanged)} of prefixes: to its own in {percent(breakdown['ffn'])}, to a third "
        f"token in {percent(breakdown['composition'] + breakdown['other'])}."
    )
