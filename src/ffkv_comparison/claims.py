"""The claims of the report in several runs: what each run gives, and how far it is from the first one."""

from collections.abc import Iterable
from functools import partial

import pandas as pd
from markupsafe import Markup

from ffkv.base.intervals import difference_of_intervals
from ffkv.run.report.claims import CLAIMS, as_table, judge_claims
from ffkv.run.report.page_tables import Cell, PageTable, of_columns
from ffkv.run.report.section import open_control
from ffkv.run.results.text import percent, points, visible
from ffkv_comparison import tables
from ffkv_comparison.comparison_file import Compared, Measured

ENDS, APART = ["value", "low", "high"], ["difference", "difference_low", "difference_high"]


def compare_claims(compared: Compared) -> pd.DataFrame:
    """Judges the claims in each run, beside its own control, as its report does: the table `CLAIMS`.

    Raises UserError if a table of a run is missing, or the folder of its control is not beside that of the run.
    """
    judged = [as_table(judge_claims(run, open_control(run))).assign(run=run.name) for run in compared.runs]
    for place, found in enumerate(judged):
        apart = [
            difference_of_intervals(*own, *first) if place else (float("nan"),) * 3
            for own, first in zip(found[ENDS].to_numpy(float), judged[0][ENDS].to_numpy(float), strict=True)
        ]
        found[APART] = apart
    return tables.CLAIMS.frame(pd.concat(judged, ignore_index=True)[tables.CLAIMS.names])


def claims_table(measured: Measured) -> PageTable:
    """Returns a row per claim: each run with its verdict, then what the others differ by from the first one."""
    claims, first, *others = {each.name: each for each in CLAIMS}, *measured.labels.items()
    of = {run: rows.set_index("claim") for run, rows in measured.claims.groupby("run", sort=False)}
    shown = [name for name in claims if name in of[first[0]].index]

    def cells(run: str, apart: bool = False) -> Iterable[Cell]:
        for name in shown:
            row, claim = of[run].loc[name], claims[name]
            write = points if claim.is_trend or (apart and claim.write is percent) else claim.write
            value, low, high = row[APART if apart else ENDS]
            exact = partial(percent, digits=3) if write is percent else write  # because a limit may be near
            within = "" if pd.isna(low) else f"{exact(low).split()[0]} to {exact(high)}"
            verdict = Markup(' <b class="{}">{}</b>').format(row["verdict"].replace(" ", "-"), row["verdict"])
            yield Markup('{}<br><span class="note">{}</span>{}').format(write(value), within, "" if apart else verdict)

    columns: dict[str, Iterable[Cell]] = {"claim": [claims[name].words for name in shown]}
    columns |= {visible(label): [*cells(run)] for run, label in (first, *others)}
    less = Markup(" less ") + visible(first[1])
    columns |= {visible(label) + less: [*cells(run, apart=True)] for run, label in others}
    return of_columns("claims", columns, {"claim"})
