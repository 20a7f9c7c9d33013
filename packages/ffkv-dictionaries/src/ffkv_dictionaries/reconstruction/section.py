"""What the page shows about reconstruction: what dictionaries leave, and what the model predicts without it."""

from ffkv.run.report.curve import Line, Panel
from ffkv.run.report.section import Section, caption, figure_of_lines
from ffkv.run.results.run import Run
from ffkv.run.results.text import number, percent

LAYERS = "reconstruction"
LEFT = [
    Line("variance that is left", LAYERS, "unexplained", curve="variance that is left"),
    Line("left part predicts as the layer", LAYERS, "ffn_error", curve="left part predicts as the layer"),
]
RECOVERED = [Line("loss that is recovered", LAYERS, "recovered", curve="loss that is recovered")]


def _numbers(run: Run) -> dict[str, str]:
    table = run.table(LAYERS)
    numbers = {}
    for row in table.itertuples():
        silent = f"{number(row.silent)} of {number(row.units)} units are silent"
        numbers[f"layer {row.layer}"] = (
            f"{percent(row.unexplained)} of the variance is left; {percent(row.recovered)} of the loss is recovered;"
            f" {row.active:.1f} units per token; {silent} on {number(row.tokens)} tokens"
        )
    return dict(list(numbers.items())[:12])


PANELS = [Panel(LEFT, "share that is left", percentages=True), Panel(RECOVERED, "loss recovered", percentages=True)]
SECTION = Section({LAYERS: figure_of_lines(PANELS, caption(__package__, "reconstruction"))}, _numbers)
