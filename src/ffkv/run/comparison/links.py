"""Where the report of a comparison names a memory, and the links that the explorer puts there."""

import re
from urllib.parse import urlencode

from markupsafe import Markup

MARKED = '<span class="memory">{}</span>'
NAMED = re.compile(MARKED.format(r"(L\d+\.\d+)"))


def mark(memory: str) -> Markup:
    """Returns the name of a memory, such as "L3.17", as the report writes it."""
    return Markup(MARKED).format(memory)


def with_links(page: str, first: str, last: str) -> str:
    """Returns the page as the explorer shows it: a memory leads to its page in the first run beside that in the last."""

    def link(cell: re.Match[str]) -> str:
        address = urlencode({"a": first, "b": last, "memory": cell[1]})
        return str(Markup('<a href="../compare?{}">{}</a>').format(address, cell[1]))

    return NAMED.sub(link, page)
