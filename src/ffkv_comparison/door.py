"""What comparisons add to ffkv, see `ffkv.base.doors`."""

from ffkv.base.doors import Command
from ffkv.base.steps import Rules, Step
from ffkv.run.steps import FIGURES

COMPARISON = Command(
    "Steps, which snakemake starts",
    "ffkv_comparison.commands:comparison",
    "Comparison: several finished runs over each other.",
)
RULES = Rules(
    comparison_measure=Step("ffkv_comparison.step:compare_runs", also=FIGURES, imports="model"),
    comparison_report=Step("ffkv_comparison.page:write_page", also=(*FIGURES, "ffkv_comparison/*")),
)
