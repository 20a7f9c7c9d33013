"""What the page says about refinement."""

from ffkv.run.report.page_tables import data_table, prediction_changes
from ffkv.run.report.section import TableBlock, Words
from ffkv.run.report.wording import course, rows
from ffkv.run.results.run import Run
from ffkv.run.results.text import percent

CHANGES = (
    "A random sample of the validation prefixes in which the last feed-forward layer changes the residual's prediction. "
    "The cosine compares the output embeddings of both tokens. “Closer than” is the share of random pairs of tokens that "
    "have a lower cosine. In the paper, 66 of 100 such changes were judged to be changes to an unrelated word."
)


def _summary(run: Run) -> list[str]:
    breakdown = rows(run.table("figure_11_breakdown"), layer=len(run.anatomy.layers) - 1).set_index("case")["share"]
    unchanged = breakdown["residual"] + breakdown["agreement"]
    return [
        "Share of prefixes in which the residual already predicts the model's prediction: "
        f"{course(run.table('figure_9_residual_agreement'), 'share')}. The last feed-forward layer changes the "
        f"prediction in {percent(1 - unchanged)} of prefixes: to its own prediction in {percent(breakdown['ffn'])}, to a "
        f"third token in {percent(breakdown['composition'] + breakdown['other'])}."
    ]


def _changes(run: Run) -> list[TableBlock]:
    folded = [("All columns", data_table(run, "prediction_changes"))]
    if "related_changes" in run.tables and len(run.table("related_changes")):
        folded.append(("Related changes, by annotator", data_table(run, "related_changes")))
    return [TableBlock("changes", "Changes in the last layer", CHANGES, prediction_changes(run), folded)]


WORDS = Words(_summary, after=_changes)
