"""What the page says about behaviours: on which prompts they were measured, what memories carry, and what the control gives beside."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ffkv.base.errors import UserError
from ffkv.base.multiple_tests import SIGNIFICANT, tell_floor
from ffkv.branches.behaviours.summary_tables import OF_WRITERS
from ffkv.branches.behaviours.words import BY_SCREEN, BY_SIZE, LISTS, RANDOM
from ffkv.run.report.page_tables import with_interval
from ffkv.run.report.section import Caption, name_control, open_control
from ffkv.run.report.wording import note, rows
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run import Run
from ffkv.run.results.text import decimals, number, percent

SUMMARY, MEMORIES, SETS, MISSED = "behaviours", "behaviour_memories", "behaviour_sets", "behaviour_missed"
EXPERTS, WRITERS = "behaviour_experts", "behaviour_writers"
SHOWN = 25  # memories of each behaviour that a page shows
POSITIONS = {"last": "at the last token", "all": "at all tokens"}


def asked(run: Run) -> pd.DataFrame:
    """Returns the table of behaviours. Raises UserError if it is missing, or of others than the settings name."""
    table = run.table(SUMMARY)
    found, wanted = table["behaviour"].tolist(), [*run.settings.behaviours]
    if sorted(found) != sorted(wanted):
        raise UserError(
            f"{run.folder} has tables of the behaviours {', '.join(found) or 'none'}, and its settings name "
            f"{', '.join(wanted) or 'none'}. Run `snakemake` again, with the options of the run: it makes what is missing."
        )
    return table


def row_of(run: Run, name: str) -> pd.Series:
    """Returns the row of a behaviour. Raises UserError: see `asked`."""
    return rows(asked(run), behaviour=name).iloc[0]


def having(control: Run | None, name: str) -> Run | None:
    """Returns the control if it was asked for a behaviour."""
    return control if control is not None and name in control.settings.behaviours else None


def _caption(tell: Callable[[Run, str], str], name: str, description: str) -> Callable[[Run], Caption]:
    """Returns what writes the caption of a figure: what `tell` says of each behaviour; and of the control, if that was asked for them."""

    def write(run: Run) -> Caption:
        control, names = open_control(run), asked(run)["behaviour"].tolist()
        own = " ".join(f"{each}: {tell(run, each)}." for each in names)
        its = " ".join(f"{each}: {tell(beside, each)}." for each in names if (beside := having(control, each)))
        found = {each: POSITIONS[settings.positions] for each, settings in run.settings.behaviours.items()}
        where = ", ".join(f"{each} {place}" for each, place in found.items())  # by behaviour, if they differ
        words = {
            "where": where if len({*found.values()}) > 1 else next(iter(found.values())),
            "beside": f" In grey {name_control(control)}: {its}" if control and its else "",
        }
        text, more = (note(__package__, each, **words) for each in (name, f"{name}_more"))
        return Caption(own, text, description, more)

    return write


def candidates(run: Run, name: str) -> tuple[pd.DataFrame, str, str]:
    """Returns candidates, and the columns of their strength (without exact effects the contrast) and q-values."""
    found = rows(run.table(MEMORIES), behaviour=name, reach="total")
    measured = found["effect"].notna().any()
    return found, *(("effect", "effect_q") if measured else ("estimate", "q_value"))


def significant(run: Run, name: str) -> pd.DataFrame | None:
    """Returns the candidates of a behaviour that are significant; None if none can be, whatever the model does."""
    found, strength, q = candidates(run, name)
    few = found[q].isna().all() if strength == "effect" else row_of(run, name)["smallest_p"] > SIGNIFICANT
    return None if few else found[found[q] <= SIGNIFICANT]


def tell_candidates(run: Run, name: str) -> str:
    """Says how many candidates of a behaviour are significant, if one can be, and which one is strongest."""
    (found, strength, _), sure = candidates(run, name), significant(run, name)
    best = sure.loc[sure[strength].abs().idxmax()] if sure is not None and len(sure) else None
    values = {"found": found, "exact": strength == "effect", "strength": strength, "sure": sure, "best": best}
    return note(__package__, "candidates", memory_name=memory_name, **values)


def caption_layers(run: Run) -> Caption:
    """Returns the words of the figure of layers."""
    own = _caption(tell_candidates, "layers", "Points by layer and effect, a panel per behaviour.")(run)
    # No test is counted if no effect was measured.
    tests = {each: int(candidates(run, each)[0]["effect"].notna().sum()) for each in asked(run)["behaviour"]}
    floors = {each: tell_floor(count, run.settings.behaviours[each].controls) for each, count in tests.items()}
    of = {each: f"{each}: {floor}" if len(floors) > 1 else floor for each, floor in floors.items() if floor}
    return replace(own, shows=" ".join([own.shows, *of.values()]))


def _tell_sets(run: Run, name: str) -> str:
    found = {choice: rows(run.table(SETS), behaviour=name, choice=choice) for choice in (BY_SCREEN, BY_SIZE, RANDOM)}
    own, longest, chance = found.values()
    return note(__package__, "carried", own=own, longest=longest, chance=chance, with_interval=with_interval)


def _tell_writers(run: Run, name: str) -> str:
    own = writers(run, name).query("reach == 'total'").set_index("writer").groupby("positions", sort=False)
    found = [(POSITIONS[at], its[its["layer"] < 0], its[its["layer"] >= 0]) for at, its in own]
    return note(__package__, "written", found=found, with_interval=with_interval)


def writers(run: Run, name: str) -> pd.DataFrame:
    """Returns the rows of the table `OF_WRITERS` of a behaviour; none in a run of an earlier ffkv."""
    return rows(run.table(WRITERS), behaviour=name) if WRITERS in run.tables else OF_WRITERS.frame([])


caption_sets = _caption(_tell_sets, "sets", "Lines by number of memories, a panel per behaviour.")
caption_writers = _caption(_tell_writers, "writers", "Lines by layer, a panel per behaviour.")


def main_numbers(run: Run) -> dict[str, str]:
    """Returns whether the model has each behaviour, and what memories carry; a dash where `summarize` says why."""
    found = {}
    for row in asked(run).to_dict("records"):
        name, pairs = row["behaviour"], row["kind"] != LISTS
        if pairs:
            found[f"{name}: prompts whose answer has a higher logit than the wrong answer"] = percent(row["accuracy"])
        what = f"{name}: memories that contribute otherwise on the prompts (q ≤ {SIGNIFICANT})"
        found[what] = "–" if _few_groups(row) else number(row["significant"])
        if pairs:
            what = f"{name}: memories whose screen is not 0 (q ≤ {SIGNIFICANT})"
            found[what] = "–" if _few_groups(row) else number(row["screened"])
            where, names = POSITIONS[run.settings.behaviours[name].positions], ("", "_low", "_high")
            share, low, high = (percent(row[f"by_memories{end}"]) if row["explained"] else "–" for end in names)
            found[f"{name}: what all memories together carry of it, patched {where}"] = share
            found[f"{name}: its 95 % interval"] = "–" if low == "–" else f"{low} to {high}"
    return found


def summarize(run: Run, control: Run | None = None) -> list[str]:
    """Returns on which prompts each behaviour was measured, what cannot be told, and why."""
    told = []
    for row in asked(run).to_dict("records"):
        name = row["behaviour"]
        values = {"its": run.settings.behaviours[name], "found": candidates(run, name)[0], "few": _few_groups(row)}
        values["missed"] = rows(run.table(MISSED), behaviour=name) if MISSED in run.tables else ()
        values["apart"] = WRITERS not in run.tables or len(writers(run, name)) > 0
        lacking = control.name if control and not having(control, name) else ""
        told.append(note(__package__, "told", row=row, lacking=lacking, decimals=decimals, **values))
    return told


def tell(run: Run) -> list[str]:
    """Returns all of it as sentences, for a page without a table of numbers."""
    return [*(f"{what}: {its}." for what, its in main_numbers(run).items()), *summarize(run)]


def _few_groups(row: Mapping[str, Any]) -> bool:
    """Tells whether no memory can be significant, or the number of those that are is not known."""
    return bool(row["smallest_p"] > SIGNIFICANT or np.isnan(row["significant"]))
