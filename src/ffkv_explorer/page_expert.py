"""The page of an expert: its memories, the tokens that are sent to it, and what it does on behaviours."""

from starlette.responses import Response

from ffkv.base.errors import UserError
from ffkv.run.results.memory_name import expert_name
from ffkv_explorer.pages import render
from ffkv_explorer.shelf import Held, NoSuch

MEMORIES, PATTERNS = 20, 10  # that the page shows


def expert(held: Held, name: str) -> Response:
    """Returns the page of an expert. Raises NoSuch if the run has no such expert."""
    try:
        its = held.run.expert(name)
    except UserError as error:
        raise NoSuch(str(error)) from error
    steps = {"←": its.expert - 1, "→": its.expert + 1}
    beside = {word: expert_name(its.layer, at) for word, at in steps.items() if 0 <= at < its.of}
    memories, patterns = its.memories, its.patterns.head(PATTERNS)
    shown = {"load": its.load, "patterns": patterns, "effects": its.effects, "memories": memories.head(MEMORIES)}
    rows = {part: table.to_dict("records") for part, table in shown.items()}
    return render("expert.html", held=held, expert=its, beside=beside, count=len(memories), **rows)
