"""What the page says about interventions."""

from ffkv.run.report.interventions import nats
from ffkv.run.report.page_tables import data_table, specific_effects
from ffkv.run.report.section import TableBlock, Words
from ffkv.run.report.wording import rows, weighted_mean
from ffkv.run.results.run import Run
from ffkv.run.results.text import number

SPECIFIC = (
    "The memories with the largest specific effects. “Own” is the total effect of the removal on the top tokens of the value. "
    "“Others” is the mean effect of vectors of the same length along other memories of the layer. The specific effect is the "
    "difference. “q” is the p-value of the removal among these controls, adjusted for all memories of the layer. “Changed” is "
    "the share of prefixes in which the model then predicts another token."
)


def _summary(run: Run) -> list[str]:
    total = rows(run.table("interventions_by_layer"), reach="total", side="positive")
    own, others = (rows(total, source=source) for source in ("own", "random_memories"))
    effect, control = (weighted_mean(table, "mean", "memories") for table in (own, others))
    return [
        "When a memory is removed from its trigger examples, the log-probabilities of its value's top tokens change by "
        f"{nats(effect)} on average (vectors of equal length along other memories: {nats(control)}). The effect is "
        f"the memory's own in {number(own['significant'].sum())} of {number(own['memories'].sum())} memories."
    ]


def _specific(run: Run) -> list[TableBlock]:
    folded = [("All columns", data_table(run, "intervention_memories"))]
    return [
        TableBlock("specific", "Memories with the largest specific effects", SPECIFIC, specific_effects(run), folded)
    ]


WORDS = Words(_summary, after=_specific)
