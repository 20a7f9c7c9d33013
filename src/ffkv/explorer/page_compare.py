"""One memory in two runs, side by side."""

from starlette.responses import HTMLResponse

from ffkv.errors import UserError
from ffkv.explorer.page_memory import values
from ffkv.explorer.pages import LIVE, render
from ffkv.explorer.shelf import Held
from ffkv.results.memory_name import check_memory, parse_memory_name


def compare(names: list[str], runs: list[Held], name: str) -> HTMLResponse:
    """The page of two runs.

    Memory L3.17 is the same unit in two runs of one model: at another training step or on another corpus. In models of
    another size or seed it is not.

    Args:
        names: the names of all open runs.
        runs: the two.
        name: of a memory.
    """
    columns, problem = [], ""
    try:
        layer, index = parse_memory_name(name or "L0.0")
        for held in runs:
            check_memory(layer, index, [each.memories for each in held.run.anatomy.layers])
    except UserError as error:
        problem = str(error)
    if not problem:
        columns = [{"held": held} | values(held, layer, index, LIVE, None, False) for held in runs]
    sizes = [[each.memories for each in held.run.anatomy.layers] for held in runs]
    return render(
        "compare.html",
        status=400 if problem else 200,
        names=names,
        runs=runs,
        name=columns[0]["memory"].name if columns else name,
        problem=problem,
        columns=columns,
        alike=runs[0].run.anatomy.architecture == runs[1].run.anatomy.architecture and sizes[0] == sizes[1],
    )
