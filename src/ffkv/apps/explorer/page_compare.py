"""Two runs side by side: their layers by relative depth, and a memory of each."""

from typing import Any

from starlette.responses import HTMLResponse

from ffkv.apps.explorer.page_memory import values
from ffkv.apps.explorer.page_run import COLUMNS, layers
from ffkv.apps.explorer.pages import render
from ffkv.apps.explorer.shelf import Held
from ffkv.base.errors import UserError
from ffkv.run.results.depth import pair_layers
from ffkv.run.results.memory_name import check_memory, parse_memory_name


def compare(names: list[str], runs: list[Held], memories: list[str]) -> HTMLResponse:
    """Returns the page of two runs.

    Memory L3.17 is the same unit in two runs of one model: at another training step or on another corpus. In models of
    another size or seed it is not.

    Args:
        names: the names of all open runs.
        runs: the two.
        memories: the name of a memory of each. An empty one is the first run's memory, or L0.0.
    """
    asked = [memories[0] or "L0.0", memories[1] or memories[0] or "L0.0"]
    columns, problems = [], []
    for held, name in zip(runs, asked):
        try:
            layer, index = parse_memory_name(name)
            check_memory(layer, index, held.sizes)
        except UserError as error:
            problems.append(f"Run {held.name}: {error}")
        else:
            columns.append({"held": held} | values(held, layer, index))
    depths = by_depth(*runs)
    return render(
        "compare.html",
        status=400 if problems else 200,
        names=names,
        runs=runs,
        asked=asked,
        problems=problems,
        columns=[] if problems else columns,
        alike=runs[0].run.anatomy.architecture == runs[1].run.anatomy.architecture and runs[0].sizes == runs[1].sizes,
        depths=depths,
        statistics=[each for each in COLUMNS if any(each.name in row for row in depths[0]["layers"])],
    )


def by_depth(a: Held, b: Held) -> list[dict[str, Any]]:
    """Pairs the layers of two runs at the same relative depth: depth, and a row of `page_run.layers` per run."""
    tables = [layers(held).set_index("layer", drop=False).to_dict("index") for held in (a, b)]
    pairs = pair_layers(len(a.sizes), len(b.sizes))
    return [{"depth": depth, "layers": [table[layer] for table, layer in zip(tables, pair)]} for depth, *pair in pairs]
