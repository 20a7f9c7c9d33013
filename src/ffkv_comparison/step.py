"""Measure what several finished runs have in common, and what they differ by with 95 % intervals: their curves and claims among it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from ffkv.base.doors import brought_by
from ffkv.base.errors import UserError
from ffkv.base.intervals import difference_of_intervals, mean_interval, paired_interval
from ffkv.base.settings import Comparison
from ffkv.base.streams import Purpose, random_stream
from ffkv.run.report.claims import as_table, judge_claims
from ffkv.run.report.curve import LAYER, Curve
from ffkv.run.report.registry import FIGURES, excused, has_figure, load_figure
from ffkv.run.report.section import open_control
from ffkv.run.results.depth import pair_layers, relative_depth
from ffkv.run.results.run import Run
from ffkv.run.results.run import open as open_run
from ffkv_comparison.comparison_file import Compared, Measured, compare_behaviours, same_prefixes
from ffkv_comparison.same_memories import follow_memories, match_memories
from ffkv_comparison.tables import ACTIVE, APART, CLAIMS, COMPARED, COSTS, CURVES, DIFFERENCES, ENDS, OF_UNITS

RESAMPLES = 400  # of the bootstrap of a difference of medians
RESAMPLED_BYTES = 2**26  # of the numbers that are drawn at a time


def compare_runs(
    folders: Sequence[Path | str],
    settings: Comparison | None = None,
    name: str = "comparison",
    seed: int = 0,
    trust_remote_code: bool = False,
) -> Measured:
    """Compares finished runs.

    Args:
        folders: the folder of each run, such as "results/demo". The first one is what the others are compared with.
        settings: the settings of the comparison. None compares the runs without an axis.
        name: name of the comparison.
        seed: seed of samples, permutations and bootstraps.
        trust_remote_code: as of `ffkv.open`, for all runs.
    Raises:
        UserError: a folder holds no finished run, a file in it is missing or damaged, the settings name other runs, or
            they ask for memories by number in models of different shapes.
    Examples:
        >>> measured = ffkv_comparison.compare_runs(["results/tiny", "results/other"])
        >>> "figure_4" in set(measured.curves["figure"])
        True
    """
    folders = [folders] if isinstance(folders, str | Path) else folders  # one is refused below, as too few
    settings = settings or Comparison(runs=[Path(folder).resolve().name for folder in folders])
    runs = [open_run(folder, trust_remote_code=trust_remote_code) for folder in folders]
    if (names := [run.name for run in runs]) != settings.runs:
        raise UserError(f"The folders are of the runs {', '.join(names)}, not of {', '.join(settings.runs)}, as set.")
    compared = Compared(name, settings, runs)
    of_memories = dict.fromkeys(("by_memory", "by_layer", "matches"), pd.DataFrame())
    if compared.memories == "by_number":
        of_memories["by_memory"], of_memories["by_layer"] = follow_memories(compared, seed)
    elif compared.memories == "by_correlation":
        of_memories["matches"] = match_memories(compared, seed)
    facts = [
        {
            "run": run.name,
            "label": label,
            "checkpoint": run.anatomy.checkpoint,
            "architecture": run.anatomy.architecture,
            "layers": len(run.anatomy.layers),
            "memories": run.anatomy.layer_offset[-1],
            "corpus": run.settings.corpus.title or run.settings.corpus.dataset,
            "model_hash": run.anatomy.model_hash,
            "corpus_hash": run.files.corpora["train"]["corpus_hash"],
        }
        for run, label in zip(runs, compared.labels, strict=True)
    ]
    return Measured(
        name=name,
        settings=settings,
        memories=compared.memories,
        runs=pd.DataFrame(facts),
        claims=compare_claims(compared),
        curves=(curves := gather_curves(compared)),
        costs=gather_costs(compared, curves),
        differences=measure_differences(compared, seed),
        **of_memories,
        **compare_behaviours(compared),
    )


def compare_claims(compared: Compared) -> pd.DataFrame:
    """Judges the claims in each run, beside its own control, as its report does: the table `CLAIMS`.

    Raises UserError if a table of a run is missing, or the folder of its control is not beside that of the run.
    """
    judged = [as_table(judge_claims(run, open_control(run))).assign(run=run.name) for run in compared.runs]
    for place, found in enumerate(judged):
        found[APART] = [
            difference_of_intervals(*own, *first) if place else (float("nan"),) * 3
            for own, first in zip(found[ENDS].to_numpy(float), judged[0][ENDS].to_numpy(float), strict=True)
        ]
    return CLAIMS.frame(pd.concat(judged, ignore_index=True)[CLAIMS.names])


class Difference(NamedTuple):
    """A difference with its 95 % interval, NaN where it is not known."""

    difference: float  # the value of a run minus that of the baseline
    low: float  # lower end of the interval
    high: float  # upper end of the interval
    pairs: int = 0  # number of units that both runs have; 0 if they are not paired


def figures_of(compared: Compared) -> Iterator[tuple[str, Sequence[Curve]]]:
    """Yields the figures that all runs have, and their curves. Those of a package of others that fails are left out, and told."""
    for name, entry in FIGURES.items():
        with excused(entry.section, f"the curves of {name}") as failed:
            curves = load_figure(name).curves
            if not curves or not all(has_figure(run, name) for run in compared.runs):
                continue
            for curve in curves if brought_by("branches", entry.section) else ():
                for run in compared.runs:
                    compare_curve(curve, run, compared.runs[0], False, np.random.default_rng(0))
        if not failed:
            yield name, curves


def gather_curves(compared: Compared) -> pd.DataFrame:
    """Gathers the curves of all figures: the table `CURVES`."""
    found = []
    for name, curves in figures_of(compared):
        for curve in curves:
            for run, place in zip(compared.runs, compared.places, strict=True):
                points = curve.points(run)
                layers = len(run.anatomy.layers)
                depth = [relative_depth(int(x), layers) for x in points["x"]] if curve.x == LAYER else np.nan
                of = {"figure": name, "curve": curve.label, "run": run.name, "depth": depth, "axis": place}
                found.append(points.assign(**of))
    return CURVES.frame(pd.concat(found, ignore_index=True))


def gather_costs(compared: Compared, curves: pd.DataFrame) -> pd.DataFrame:
    """Puts figures 2 to 8 of layers that a run reads through a dictionary beside what they cost: the table `COSTS`. `curves`: of all."""
    layers = {place.layer for run in compared.runs for place in run.anatomy.dictionaries}
    chosen = curves[curves["figure"].isin(COMPARED) & curves["x"].isin(layers)]
    found = []
    for run in compared.runs:
        left = {place.layer: place.unexplained for place in run.anatomy.dictionaries}
        if has_figure(run, "reconstruction_by_layer"):
            left = dict(run.table("reconstruction")[["layer", "unexplained"]].itertuples(index=False))
        for layer, own in chosen[chosen["run"] == run.name].groupby("x"):
            units = run.anatomy.layers[int(layer)].memories
            active = units * own.loc[own["curve"] == ACTIVE, "value"].sum()
            cost = {"layer": int(layer), "units": units, "active": active, "explained": 1 - left.get(int(layer), 0.0)}
            of_units = [curve in OF_UNITS for curve in zip(own["figure"], own["curve"])]
            found.append(own.assign(**cost, per_thousand=1000 * own["value"].where(of_units)))
    return COSTS.frame(pd.concat(found)[COSTS.names]) if found else pd.DataFrame()


def measure_differences(compared: Compared, seed: int = 0) -> pd.DataFrame:
    """Measures how each run differs from the first one, in every curve.

    Runs are paired unit by unit where they have the same units: memories, if `compared.memories` is "by_number";
    sampled prefixes, if both runs sampled the same ones. Else the two samples count as independent. A layer is compared
    with the layer at the same relative depth. Returns the table `DIFFERENCES`.
    """
    first, found = compared.runs[0], []
    same = {run.name: same_prefixes(first, run) for run in compared.runs[1:]}
    for number, (name, curves) in enumerate(figures_of(compared)):
        for place, curve in enumerate(curves):
            for other, run in enumerate(compared.runs[1:]):
                stream = random_stream(seed, Purpose.COMPARISON_BOOTSTRAP, number, place, other)
                can_pair = {"memories": compared.memories == "by_number", "prefixes": same[run.name]}
                paired = curve.units is not None and can_pair[curve.units.of]
                rows = compare_curve(curve, run, first, paired, stream)
                found.append(rows.assign(figure=name, curve=curve.label, run=run.name, baseline=first.name))
    return DIFFERENCES.frame(pd.concat(found, ignore_index=True))


def compare_curve(curve: Curve, run: Run, first: Run, paired: bool, stream: np.random.Generator) -> pd.DataFrame:
    """Measures how a curve differs from that of the first run: x, depth, difference, low, high, pairs, paired_by."""
    of_run, of_first = (each.set_index("x") for each in (curve.points(run), curve.points(first)))
    if curve.x != LAYER:
        places = [(np.nan, x, x) for x in of_run.index]
    else:
        places = pair_layers(len(run.anatomy.layers), len(first.anatomy.layers))
    units, rows = curve.units, []
    numbers = [units.numbers(each).groupby("layer") for each in (run, first)] if units else [(), ()]
    own, its = ({layer: found.set_index("unit")["value"] for layer, found in each} for each in numbers)
    for depth, x, x_first in places:
        if x not in of_run.index or x_first not in of_first.index:
            continue
        if units is not None and (paired or units.median) and x in own and x_first in its:
            a, b = own[x], its[x_first]
            if paired:
                shared = a.index.intersection(b.index)
                a, b = a.loc[shared], b.loc[shared]
            both = a.to_numpy(), b.to_numpy()
            difference = difference_of_medians(*both, paired, stream) if units.median else difference_of_means(*both)
        else:  # from the intervals alone
            ends = (point[name] for point in (of_run.loc[x], of_first.loc[x_first]) for name in ENDS)
            difference = Difference(*difference_of_intervals(*ends))
        by = units.of if units and difference.pairs else ""
        rows.append({"x": x, "depth": depth, **difference._asdict(), "paired_by": by})
    return pd.DataFrame(rows, columns=["x", "depth", *Difference._fields, "paired_by"])


def difference_of_means(x: np.ndarray, y: np.ndarray) -> Difference:
    """Mean of x - y over pairs; `paired_interval` if all numbers are 0 or 1, else `mean_interval` of two or more."""
    differences = x - y
    if not len(differences):
        return Difference(np.nan, np.nan, np.nan)
    interval = paired_interval if np.isin([x, y], [0, 1]).all() else mean_interval
    return Difference(differences.mean(), *interval(differences), len(differences))


def difference_of_medians(x: np.ndarray, y: np.ndarray, paired: bool, stream: np.random.Generator) -> Difference:
    """median(x) - median(y), with a percentile bootstrap. Pairs are drawn together."""
    if not (len(x) and len(y)):
        return Difference(np.nan, np.nan, np.nan)
    if paired:
        of_x, of_y = _resampled_medians(np.stack([x, y]), stream)
    else:
        (of_x,), (of_y,) = _resampled_medians(x[None], stream), _resampled_medians(y[None], stream)
    low, high = np.quantile(of_x - of_y, [0.025, 0.975])
    return Difference(np.median(x) - np.median(y), low, high, len(x) if paired else 0)


def _resampled_medians(values: np.ndarray, stream: np.random.Generator) -> np.ndarray:
    """Returns the medians of resamples of units [quantity, resample], from quantities of them [quantity, unit]."""
    units, medians = values.shape[1], []
    block = max(1, RESAMPLED_BYTES // (8 * units))
    for start in range(0, RESAMPLES, block):
        chosen = stream.integers(0, units, (min(block, RESAMPLES - start), units))
        medians.append([np.median(quantity[chosen], 1) for quantity in values])
    return np.concatenate(medians, 1)
