"""Pages of memories as files, for a paper's supplement. They open from disk, without network and without scripts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ffkv.apps.explorer import page_memory, page_run
from ffkv.apps.explorer.pages import Live, write
from ffkv.apps.explorer.shelf import Held, Shelf
from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.run.report.cards import choose
from ffkv.run.results import indexes
from ffkv.run.results.collections import expand
from ffkv.run.results.memory_name import memory_name

PAGES = 24  # memories whose pages are written if none is named, as many as a report has cards


class Exported(Live):
    """Makes the addresses between the files of one folder. A memory without a page has none."""

    exported = True

    def __init__(self, memories: Sequence[tuple[int, int]]):
        """memories: layer and number of those that have pages."""
        self._memories = set(memories)

    def run(self, held: Held, part: str = "", **query: Any) -> str:
        """Returns the file of the run."""
        return "index.html"

    def memory(self, held: Held, layer: int, index: int, part: str = "", **query: Any) -> str:
        """Returns the file of a memory; "" if it has none."""
        return f"{memory_name(layer, index)}.html" if (layer, index) in self._memories else ""

    def pages(self, held: Held) -> list[tuple[str, str]]:
        """Returns name and file of each memory that has a page."""
        return [(memory_name(*place), self.memory(held, *place)) for place in sorted(self._memories)]


def export(shelf: Shelf, held: Held, names: Sequence[str], folder: Path, colours: bool) -> list[Path]:
    """Writes the page of a run and those of some memories into a folder. Returns the files, the run's first.

    Without names of memories, they are those that a report of 24 cards shows. Coloured tokens need the model. Raises
    UserError if there is no such memory, or the model cannot be loaded.
    """
    run = held.run
    memories = [run.memory(name) for name in expand(run.files, names)]
    places = list(dict.fromkeys((memory.layer, memory.memory) for memory in memories))
    if not places:
        places = choose(indexes.trigger_patterns(run.files), run.memories(), PAGES)
    links, coloured_by = Exported(places), shelf if colours else None
    pages = {"index.html": write("run.html", held=held, links=links, **page_run.values(held))}
    for place in places:
        try:
            shown = page_memory.values(held, *place, links, coloured_by)
        except UserError as error:
            if not colours:
                raise
            raise UserError(f"{error} Or write the pages without colours: --no-colours.") from error
        near = page_memory.similar_to(held, *place)
        pages[links.memory(held, *place)] = write("memory.html", held=held, links=links, near=near, **shown)
    for name, page in pages.items():
        with atomic(folder / name, summed=False) as temporary:
            temporary.write_text(page, encoding="utf-8")
    return [folder / name for name in pages]
