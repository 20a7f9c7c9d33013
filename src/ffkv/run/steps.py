"""The steps of the wing `run`."""

from ffkv.base.steps import Step

FIGURES = "run/report"  # their modules are imported by name
STEPS = {
    "report": Step("ffkv.run.report.step:write_report", also=(FIGURES,)),
    "comparison_measure": Step("ffkv.run.comparison.step:compare_runs", also=(FIGURES,), imports="model"),
    "comparison_report": Step("ffkv.run.comparison.page:write_page", also=(FIGURES, "run/comparison")),
}
