"""What the page says about behaviours: on which prompts they were measured, what memories carry, and what the control gives beside."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ffkv.base.errors import UserError
from ffkv.base.multiple_tests import SIGNIFICANT, tell_floor
from ffkv.branches.behaviours.words import BY_SCREEN, LISTS, PROMPTS, RANDOM
from ffkv.run.report.section import Caption, name_control, open_control
from ffkv.run.report.wording import note, rows, short_name
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run import Run
from ffkv.run.results.text import MINUS, decimals, number, percent

SUMMARY, MEMORIES, SETS = "behaviours", "behaviour_memories", "behaviour_sets"
SHOWN = 25  # memories of each behaviour that a page shows
POSITIONS = {"last": "at the last token", "all": "at all tokens"}
GROUPED = {  # what makes groups of prompts
    "group": ": the file says of which group each prompt is",
    "words": ": pairs that share a word in which their prompts differ are one group",
    "prompt": "",
}


def asked(run: Run) -> pd.DataFrame:
    """Returns the table of the behaviours of a run.

    Raises UserError if it is missing, or is of other behaviours than the settings of the run.
    """
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


def _beside(tell: Callable[[Run, str], str], run: Run, control: Run | None, name: str) -> str:
    """Returns what `tell` says of a behaviour of a run, and in brackets of its control, if that was asked for it."""
    its = having(control, name)
    return f"{tell(run, name)} ({short_name(its)}: {tell(its, name)})" if its else tell(run, name)


def candidates(run: Run, name: str) -> tuple[pd.DataFrame, str, str]:
    """Returns the candidates of a behaviour, the column of their strength, and that of its q-values.

    Where no exact effect was measured, the contrast is their strength.
    """
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
    unmeasured = "" if strength == "effect" else "; no exact effect was measured"
    if sure is None:
        few = "random memories" if strength == "effect" else "groups of prompts"
        return f"{number(len(found))} candidates, of which none can be significant with so few {few}{unmeasured}"
    text = f"{number(len(sure))} of {number(len(found))} candidates are significant"
    if len(sure):
        best = sure.loc[sure[strength].abs().idxmax()]
        unit = "" if unmeasured else " logits"
        strongest = f"{best[strength]:.3g}{unit}".replace("-", MINUS)
        text += f", {memory_name(int(best['layer']), int(best['memory']))} most ({strongest})"
    return text + unmeasured


def caption_layers(run: Run) -> Caption:
    """Returns the words of the figure of layers."""
    told, control = [], open_control(run)
    for name in asked(run)["behaviour"]:
        told.append(f"{name}: {_beside(tell_candidates, run, control, name)}.")
        tests = int(candidates(run, name)[0]["effect"].notna().sum())  # none if no effect was measured
        told += filter(None, [tell_floor(tests, run.settings.behaviours[name].controls)])
    text = note(__package__, "layers", where=_where(run), crosses=_crosses(control, "crosses"))
    return Caption(" ".join(told), text, "Points by layer and effect, a panel per behaviour.")


def _crosses(control: Run | None, what: str) -> str:
    """Says, with a space in front, what is the control's; empty without one."""
    return f" Grey {what}: {name_control(control)}." if control is not None else ""


def _where(run: Run) -> str:
    """Returns at which tokens memories are patched, by behaviour if they differ."""
    found = {name: POSITIONS[its.positions] for name, its in run.settings.behaviours.items()}
    differ = len({*found.values()}) > 1
    return ", ".join(f"{name} {where}" for name, where in found.items()) if differ else next(iter(found.values()))


def _tell_sets(run: Run, name: str) -> str:
    """Says how much of a behaviour its largest set carries."""
    table = rows(run.table(SETS), behaviour=name)
    if not len(own := rows(table, choice=BY_SCREEN)):
        return "no set was measured"
    largest = own.iloc[-1]
    if np.isnan(largest["completeness"]):
        return "no share can be told, because the behaviour is not surely above 0"
    chance = rows(table, choice=RANDOM, size=int(largest["size"]))["completeness"]
    beside = "".join(f"; random sets {percent(share)}" for share in chance)
    return f"{number(largest['size'])} memories carry {_interval(largest, 'completeness')} of it{beside}"


def _interval(row: pd.Series, name: str) -> str:
    """Writes a share with its interval, which may be empty."""
    ends = row[f"{name}_low"], row[f"{name}_high"]
    return percent(row[name]) + ("" if np.isnan(ends).any() else f" ({percent(ends[0])} to {percent(ends[1])})")


def caption_sets(run: Run) -> Caption:
    """Returns the words of the figure of sets."""
    told, control = [], open_control(run)
    for name in asked(run)["behaviour"]:
        told.append(f"{name}: {_beside(_tell_sets, run, control, name)}.")
    text = note(__package__, "sets", where=_where(run), dashes=_crosses(control, "dashes"))
    return Caption(" ".join(told), text, "Lines by number of memories, a panel per behaviour.")


def summarize(run: Run, control: Run | None = None) -> list[str]:
    """Returns whether the model has each behaviour, on which prompts, and how much of it memories carry."""
    told = []
    for row in asked(run).to_dict("records"):
        name = row["behaviour"]
        its = run.settings.behaviours[name]
        groups = _tell_groups(row)
        not_asked = f" {control.name} was not asked for it." if control and not having(control, name) else ""
        differ = _beside(_tell_differing, run, control, name)
        if row["kind"] == LISTS:
            its_words = {"name": name, "prompts": number(row["prompts"]), "groups": groups, "differ": differ}
            told.append(note(__package__, "of_lists", not_asked=not_asked, **its_words))
            continue
        right = _beside(_tell_accuracy, run, control, name)
        text = f"{name}: the answer has a higher logit than the wrong answer on {right}. {groups}"
        if not row["explained"]:
            few = f" The accuracy is below {percent(its.minimum_accuracy)}, so there is nothing to explain."
            told.append(f"{text}{few}{not_asked}")
            continue
        carried = _beside(_tell_carried, run, control, name)
        text += note(__package__, "explained", differ=differ, where=POSITIONS[its.positions], carried=carried)
        told.append(f"{text}{_tell_screen(run, name)}{not_asked}")
    return told


def _tell_groups(row: Mapping[str, Any]) -> str:
    """Says what counts as one draw, from a row of the table of behaviours."""
    if np.isnan(row["groups"]):
        return "Each prompt counts as one draw: an earlier ffkv made the run, which knew no groups of prompts."
    if row["groups"] == row["prompts"]:
        return "Each prompt counts as one draw."
    many = f"{number(row['groups'])} group{'s' * (row['groups'] > 1)}"
    return f"They are of {many}, and a group counts as one draw{GROUPED[row['grouped_by']]}."


def _tell_accuracy(run: Run, name: str) -> str:
    row = row_of(run, name)
    return f"{percent(row['accuracy'])} of {number(row['prompts'])} prompts"


def _tell_differing(run: Run, name: str) -> str:
    """Says for how many memories contrast and screen are significant, if any can be with the groups that there are."""
    row = row_of(run, name)
    if row["smallest_p"] > SIGNIFICANT or np.isnan(row["significant"]):
        return f"not told, because no p-value of so few groups is below {row['smallest_p']:.2g}"
    screened = "" if row["kind"] == LISTS else f", and {number(row['screened'])} with a screen that is not 0"
    return f"{number(row['significant'])}{screened} (false discovery rate {SIGNIFICANT} per layer)"


def _tell_carried(run: Run, name: str) -> str:
    """Says how much of a behaviour all memories together carry, or why no share can be told."""
    row = row_of(run, name)
    if not row["explained"]:
        return "not measured, because its accuracy is too low"
    if not np.isnan(row["by_memories"]):
        return _interval(row, "by_memories")
    if row["kind"] == PROMPTS or run.settings.behaviours[name].baseline != "patch":
        return "not told, because the behaviour is measured from what is left when all memories are patched"
    return "not told, because the behaviour is not surely above 0"


def _tell_screen(run: Run, name: str) -> str:
    """Says, with a space in front, how far the screen tells the exact effects; empty if it cannot be said."""
    found = candidates(run, name)[0]
    if np.isnan(pearson := row_of(run, name)["pearson"]):
        return ""
    disagree, count = found["disagrees"].astype(bool).sum(), found["effect"].notna().sum()
    same = "" if found["screen_measured"].isna().all() else " and the same prompts"  # an earlier ffkv took other ones
    numbers = {"candidates": number(count), "pearson": decimals(pearson), "disagree": number(disagree)}
    text = note(__package__, "screen", same=same, **numbers)
    lacks = run.settings.behaviours[name].frozen and found["frozen_estimate"].isna().all()
    return text + (" The frozen screen could not be computed." if lacks else "")
