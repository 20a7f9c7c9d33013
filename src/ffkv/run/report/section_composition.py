"""What the page says about composition."""

from ffkv.run.report.section import Words
from ffkv.run.report.wording import course, rows
from ffkv.run.results.run import Run


def _summary(run: Run) -> list[str]:
    no_agreement = rows(run.table("figure_8_no_agreement"), reading="active")
    return [
        "Median share of a layer's memories that a prefix activates: "
        f"{course(run.table('figure_7_active_memories'), 'median')}. Share of prefixes in which no active memory "
        f"predicts the token that the layer predicts: {course(no_agreement, 'share')}."
    ]


WORDS = Words(_summary)
