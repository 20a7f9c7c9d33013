"""Templates of pages, as the report and the explorer write them: what strangers wrote is escaped."""

import jinja2

from ffkv.base.terminal import plain
from ffkv.run.results.text import (
    MINUS,
    column,
    ending,
    number,
    percent,
    percents,
    prefix,
    shortened,
    signed,
    token,
    visible,
)


def make_environment(*folders: tuple[str, str]) -> jinja2.Environment:
    """Templates with the filters that every page uses. What they write is escaped unless it is `Markup`.

    Args:
        folders: where templates are, each as a package and a folder inside it; the first one that has a name counts.
    """
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(*folder) for folder in folders]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    filters = (visible, token, ending, prefix, shortened, plain, percent, percents, number, column, signed)
    made.filters |= {each.__name__: each for each in filters}
    made.globals |= {"signs": {1: "+", -1: MINUS, 0: ""}}
    return made
