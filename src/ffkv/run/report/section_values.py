"""What the page says about values."""

from ffkv.run.report.page_tables import data_table, predictive_values
from ffkv.run.report.section import TableBlock, Words
from ffkv.run.report.wording import course, rows, weighted_mean
from ffkv.run.results.run import Run
from ffkv.run.results.text import number, percent

PREDICTIVE = (
    "The {count} values with the highest probability of their top token. The table shows how many of a key's trigger "
    "examples are followed by this token. It also shows the strongest of these examples, or the strongest of all "
    "examples if none of them is followed by the token. Of the 100 such values of the paper, 97 were in its upper six layers, "
    "and 46 had such an example. “Contribution” is the length of what the memory typically adds to the residual stream: its "
    "mean coefficient over its trigger examples times the length of the value."
)


def _summary(run: Run) -> list[str]:
    agreement = run.table("figure_4_agreement")
    own, permuted = rows(agreement, source="trigger"), rows(agreement, source="permuted")
    rate, baseline = (percent(weighted_mean(table, "rate", "keys")) for table in (own, permuted))
    return [
        f"For {rate} of {number(own['keys'].sum())} memories, the top token of the value is the token that follows the "
        f"key's strongest trigger example (with keys permuted: {baseline}). Per layer: {course(own, 'rate')}."
    ]


def _predictive(run: Run) -> list[TableBlock]:
    table = predictive_values(run)
    folded = [
        ("Number of these values per layer", data_table(run, "table_2_predictive_layers")),
        ("All columns", data_table(run, "table_2_predictive_values")),
    ]
    text = PREDICTIVE.format(count=len(table.rows))
    return [TableBlock("predictive", "Table 2. Predictive values", text, table, folded)]


WORDS = Words(_summary, after=_predictive)
