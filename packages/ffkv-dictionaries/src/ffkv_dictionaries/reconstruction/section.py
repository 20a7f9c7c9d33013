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
    return {
        "variance that dictionaries leave of the output of their layers": percent(table["unexplained"].mean()),
        "loss that is recovered with what they make alone": percent(table["recovered"].mean()),
        "share of units that are active at a token": percent((table["active"] / table["units"]).mean()),
        "units that are silent at all tokens": f"{number(table['silent'].sum())} of {number(table['units'].sum())}",
    }


PANELS = [Panel(LEFT, "share that is left", percentages=True), Panel(RECOVERED, "loss recovered", percentages=True)]
SECTION = Section(
    {"reconstruction_by_layer": figure_of_lines(PANELS, caption(__package__, "reconstruction"))}, _numbers
)
