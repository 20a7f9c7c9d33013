"""Templates of pages, as the report and the explorer write them: what strangers wrote is escaped."""

import jinja2

from ffkv.base.terminal import plain
from ffkv.run.report.text import MINUS, signed
from ffkv.run.results.text import ending, number, percent, prefix, shortened, token, visible


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
    made.filters |= {
        "visible": visible,
        "token": token,
        "ending": ending,
        "prefix": prefix,
        "shortened": shortened,
        "plain": plain,
    }
    made.filters |= {"percent": percent, "number": number, "signed": signed}
    made.globals |= {"signs": {1: "+", -1: MINUS, 0: ""}}
    return made
