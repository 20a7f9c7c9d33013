"""The step of the wing `run`."""

from ffkv.base.steps import Step
from ffkv.branches.registry import BRANCHES

SECTIONS = [its.section.partition(":")[0].replace(".", "/") for its in BRANCHES.values() if its.section]
# Modules that are imported by name, and their data.
FIGURES = (
    "ffkv/run/report/*",
    *(f"{module}.py" for module in SECTIONS),
    *(f"{module.rpartition('/')[0]}/texts.toml" for module in SECTIONS),
)
STEPS = {"report": Step("ffkv.run.report.step:write_report", also=FIGURES)}
