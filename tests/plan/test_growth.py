"""What each rule has to do."""

import re
from pathlib import Path

import ffkv
from ffkv.plan.growth import measure_amounts
from ffkv.plan.shape import Shape
from ffkv.plan.text import Split
from ffkv.settings import Settings


def test_every_rule_of_the_workflow_is_known():
    rules = Path(ffkv.__file__).parent / "workflow/rules"
    names = {name for path in rules.glob("*.smk") for name in re.findall(r"^rule (\w+):", path.read_text(), re.M)}
    split = Split(100.0, 10.0, 1.0, 500.0, 1.0, "")
    shape = Shape("Hand", (8,), 4, 10, 400, 256, 80, "float32")
    names -= {"all", "annotate_agreement"}  # told as not estimated
    names -= {"comparison_measure", "comparison_report"}  # of no run: `ffkv.plan.comparisons`
    assert names == measure_amounts(Settings(), shape, {"train": split, "validation": split}).keys()
