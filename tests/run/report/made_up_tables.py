"""The tables that the branches of a made-up run leave, plausible numbers as they are described."""

from pathlib import Path

import numpy as np
import pandas as pd

from ffkv.base.files import tables
from ffkv.base.intervals import box, wilson
from ffkv.branches.behaviours.summary_tables import ALL_GRAPHS
from ffkv.branches.concepts.tables import CURVES, FEATURES, TASKS
from ffkv.branches.keys.section import CATEGORIES
from ffkv.branches.keys.tables import BY_PREFIX
from ffkv.branches.refinement.section import CASES
from ffkv.branches.roles.tables import BY_LAYER, SIGN_CASES, TYPES_BY_LAYER
from ffkv.branches.roles.tables import BY_MEMORY as ROLES
from ffkv.branches.roles.tables import CASES as CASES_OF_SIGNS
from ffkv.branches.routing import measure as routing
from ffkv.branches.routing import tables as of_routing
from tests.run.report.made_up import HOSTILE, KEPT, MEMORIES, PREFIXES, VOCABULARY, write_some_projections


def _shares(generator: np.random.Generator, layers: int, names: list[str], column: str, total: int) -> pd.DataFrame:
    """Shares that add up to 1 in each layer, drifting from the first name to the last."""
    drift = np.linspace(0, 1, layers)[:, None]
    weights = 0.05 + np.abs(np.linspace(1, 0, len(names)) - drift) + generator.random((layers, len(names))) / 4
    counts = np.floor(total * weights / weights.sum(1, keepdims=True)).astype(int)
    counts[:, 0] += total - counts.sum(1)
    index = pd.MultiIndex.from_product([range(layers), names], names=["layer", column])
    table = pd.DataFrame({"prefixes": counts.ravel()}, index=index).reset_index()
    return table.assign(share=table["prefixes"] / total)


def write_keys(folder: Path, layers: int, generator: np.random.Generator) -> None:
    both = [_shares(generator, layers, names, "category", 500) for names in (CATEGORIES, CATEGORIES[::-1])]
    both = [table.assign(sample=sample) for table, sample in zip(both, ("trigger", "random"))]
    tables.write(
        pd.concat(both)[["sample", "layer", "category", "prefixes", "share"]], folder / "keys/figure_2_categories.csv"
    )
    summary = pd.DataFrame(
        {"sample": np.repeat(["trigger", "random"], layers), "layer": list(range(layers)) * 2, "keys": 20,
         "keys_with_pattern": [18] * layers + [1] * layers, "patterns_per_key": 3.5, "coverage": 0.7}
    )  # fmt: skip
    tables.write(summary, folder / "keys/figure_2_pattern_counts.csv")
    removal = pd.DataFrame(
        [
            {"layer": layer, "removed": removed, "keys": 20, "triggers": 240, "skipped": 3, "change": change + layer,
             "low": change + layer - 2, "high": change + layer + 2, "median": change + layer - 1}
            for layer in range(layers)
            for removed, change in (("first", -12.0), ("last", -70.0), ("random", -20.0))
        ]
    )  # fmt: skip
    tables.write(removal, folder / "keys/figure_3_removal.csv")
    activity = {
        "keys": MEMORIES,
        "dead": 1,
        "fewer": 2,
        "one_token": 0.04,
        "tied": 3,
        "firing_q1": 0.1,
        "firing_median": 0.2,
        "firing_q3": 0.3,
    }
    tables.write(pd.DataFrame([{"layer": layer, **activity} for layer in range(layers)]), folder / "keys/activity.csv")
    found = pd.DataFrame(
        [
            {"sample": sample, "layer": layer, "memory": memory, "pattern": number, "kind": "last word",
             "family": ("shallow", "semantic")[number], "label": f"ends with “{HOSTILE[memory % len(HOSTILE)]}”",
             "prefixes": 3 + (memory + number) % (KEPT - 3), "chance": 0.01, "p_value": 1e-9, "q_value": 1e-7,
             "ranks": list(range(3 + (memory + number) % (KEPT - 3)))}
            for sample in ("trigger", "random")
            for layer in range(layers)
            for memory in range(1, 8)
            for number in (0, 1)
        ]
    )  # fmt: skip
    tables.write(found, folder / "keys/patterns/0.parquet")
    every = pd.MultiIndex.from_product([range(layers), range(MEMORIES)], names=["layer", "memory"]).to_frame(
        index=False
    )
    examples = BY_PREFIX.frame(every.assign(sample="trigger", rank=0, category=CATEGORIES[0]))  # all were analysed
    tables.write(examples, folder / "keys/by_prefix/0.parquet")
    (folder / "keys/patterns/1.parquet").write_text("of an earlier run, with more groups of layers")


def write_values(folder: Path, layers: int, signed: bool, generator: np.random.Generator) -> None:
    keys = MEMORIES - 1
    own = np.round(keys * 0.6 * (np.arange(layers) / layers) ** 2).astype(int)
    rates = {"trigger": own, "permuted": own // 4, "unigram": np.ones(layers, int), "uniform": np.zeros(layers, int)}
    if signed:
        rates["negative"] = own // 2
    rows = [
        {"layer": layer, "source": source, "agreeing": agreeing[layer], "keys": keys, "dead": 1}
        for source, agreeing in rates.items()
        for layer in range(layers)
    ]
    agreement = pd.DataFrame(rows)
    low, high = wilson(agreement["agreeing"], agreement["keys"])
    tables.write(
        agreement.assign(rate=agreement["agreeing"] / keys, low=low, high=high),
        folder / "values/figure_4_agreement.csv",
    )
    ranks = [
        {"layer": layer, "keys": keys, **box(generator.integers(0, max(2, 30 - layer // 2), 80)), "tied": layer % 2}
        for layer in range(layers)
    ]
    tables.write(pd.DataFrame(ranks), folder / "values/figure_5_rank.csv")
    edges, counts = np.linspace(0.001, 0.2, 9), np.array([900, 120, 40, 12, 6, 3, 0, 2])
    agreeing = np.array([10, 12, 9, 4, 3, 2, 0, 2])
    low, high = wilson(agreeing, counts)
    bins = {"low": edges[:-1], "high": edges[1:], "values": counts, "agreeing": agreeing}
    rate = np.where(counts, agreeing / np.maximum(counts, 1), np.nan)
    tables.write(
        pd.DataFrame({**bins, "rate": rate, "rate_low": low, "rate_high": high}),
        folder / "values/figure_6_top_probability.csv",
    )
    predictive = [
        {"layer": number % layers, "memory": number, "norm": 2.5, "contribution": 1.5, "top_token": number, "token": VOCABULARY[number],
         "top_probability": 0.2 / (1 + number), "triggers": KEPT, "matching": number % 3,
         "precision": number % 3 / KEPT, "prefix": "".join(HOSTILE) if number % 3 else "",
         "next_token": VOCABULARY[number] if number % 3 else ""}
        for number in range(20)
    ]  # fmt: skip
    tables.write(pd.DataFrame(predictive), folder / "values/table_2_predictive_values.csv")
    where = [{"layer": layer, "values": 20 // layers, "matching": 3} for layer in range(layers)]
    tables.write(pd.DataFrame(where), folder / "values/table_2_predictive_layers.csv")
    write_some_projections(folder, layers, signed, generator)


def _boxes(layers: int, centre: np.ndarray, spread: float, generator: np.random.Generator) -> pd.DataFrame:
    samples = np.clip(centre[:, None] + spread * generator.standard_normal((layers, 200)), 0, 1)
    return pd.DataFrame([{"layer": layer, "prefixes": PREFIXES, **box(sample)} for layer, sample in enumerate(samples)])


def _rates(layers: int, count: np.ndarray, **columns) -> pd.DataFrame:
    low, high = wilson(count, np.full(layers, PREFIXES))
    table = {
        "layer": range(layers),
        "prefixes": PREFIXES,
        **columns,
        "share": count / PREFIXES,
        "low": low,
        "high": high,
    }
    return pd.DataFrame(table)


def write_composition(folder: Path, layers: int, generator: np.random.Generator) -> None:
    depth = np.linspace(0, 1, layers)
    tables.write(
        _boxes(layers, 0.5 - 0.35 * depth, 0.06, generator), folder / "composition/figure_7_active_memories.csv"
    )
    without = np.round(PREFIXES * (0.95 - 0.3 * depth)).astype(int)
    both = [
        _rates(layers, without - less, reading=reading, no_agreement=without - less)
        for reading, less in (("active", 0), ("all", 60))
    ]
    order = ["layer", "reading", "prefixes", "no_agreement", "share", "low", "high"]
    tables.write(pd.concat(both)[order], folder / "composition/figure_8_no_agreement.csv")
    cases = {"cases": 50, "stop_word": 30, "stop_word_share": 0.6, "short": 21, "short_share": 0.42}
    base = {"base_stop_word_share": 0.4, "base_short_share": 0.2}
    tables.write(
        pd.DataFrame([{"layer": n, **cases, **base} for n in range(-1, layers)]),
        folder / "composition/figure_8_agreement_cases.csv",
    )
    median = 6 + 10 * (1 - depth)
    effective = {
        "memories": MEMORIES,
        "effective_q1": median - 2,
        "effective_median": median,
        "effective_q3": median + 3,
    }
    tables.write(
        pd.DataFrame({"layer": range(layers), **effective, "participation_median": median / 2}),
        folder / "composition/figure_7_effective_number.csv",
    )


def write_refinement(folder: Path, layers: int, generator: np.random.Generator) -> None:
    depth = np.linspace(0.05, 0.9, layers)
    matching = np.round(PREFIXES * depth).astype(int)
    tables.write(
        _rates(layers, matching, matching=matching).assign(tied=0),
        folder / "refinement/figure_9_residual_agreement.csv",
    )
    tables.write(_boxes(layers, depth / 2, 0.1, generator), folder / "refinement/figure_10_final_probability.csv")
    breakdown = _shares(generator, layers, CASES, "case", PREFIXES)
    low, high = wilson(breakdown["prefixes"], np.full(len(breakdown), PREFIXES))
    tables.write(breakdown.assign(low=low, high=high), folder / "refinement/figure_11_breakdown.csv")
    changes = [
        {"prefix": number, "text": "".join(HOSTILE[: number % 9 + 1]), "next_token": VOCABULARY[number],
         "residual_token": VOCABULARY[-number - 1], "output_token": VOCABULARY[number + 2],
         "cosine": 0.08 * number - 0.5, "cosine_percentile": 0.05 * number, "related": ""}
        for number in range(18)
    ]  # fmt: skip
    tables.write(pd.DataFrame(changes), folder / "refinement/prediction_changes.csv")


def write_interventions(folder: Path, layers: int) -> None:
    rows = [
        {"layer": layer, "side": side, "reach": reach, "source": source, "memories": 20, "mean": sign * effect * layer,
         "low": sign * effect * layer - 0.01, "high": sign * effect * layer + 0.01,
         "significant": layer if source == "own" else np.nan}
        for layer in range(layers)
        for side, sign in (("positive", -1), ("negative", 1))
        for reach in ("direct", "total")
        for source, effect in (("own", 0.5), ("random_memories", 0.1), ("random_directions", 0.05), ("similar_size", 0.2),
                               ("placebo", 0.0), ("other_tokens", 0.02))
    ]  # fmt: skip
    tables.write(pd.DataFrame(rows), folder / "intervention/interventions_by_layer.csv")
    doses = [
        {"layer": layer, "side": side, "reach": reach, "change": change, "scale": scale, "memories": 20 * layers,
         "top": effect, "low": effect - 0.1, "high": effect + 0.1, "next": effect / 2, "divergence": abs(effect), "changed": 0.1}
        for layer in range(-1, layers)
        for side in ("positive", "negative")
        for reach in ("direct", "total")
        for change, scale, effect in (("scale", 0.0, -0.5), ("scale", 0.5, -0.2), ("scale", 2.0, 0.6), ("scale", -1.0, -0.9),
                                      ("mean", np.nan, -0.4))
    ]  # fmt: skip
    tables.write(pd.DataFrame(doses), folder / "intervention/intervention_doses.csv")
    kept = [
        {"layer": layer, "choice": choice, "kept": count, "prefixes": 100, "unchanged": stays, "share": stays / 100,
         "low": max(stays / 100 - 0.05, 0), "high": min(stays / 100 + 0.04, 1), "divergence": 0.1}
        for layer in range(layers)
        for choice, count, stays in (("largest", 0, 60), ("largest", 10, 90), ("random", 0, 60), ("random", 10, 65),
                                     ("all", MEMORIES, 100))
    ]  # fmt: skip
    tables.write(pd.DataFrame(kept), folder / "intervention/kept_memories.csv")
    memories = [
        {"layer": number % layers, "memory": number % MEMORIES, "side": "positive", "reach": reach, "prefixes": 10,
         "silent_prefixes": 10, "similar_prefixes": 8, "coefficient": 1.5, "size": 2.0, "own": -1.0 / (number + 1),
         "random_memories": 0.01, "random_directions": 0.0, "similar_size": -0.1, "placebo": 0.0, "other_tokens": 0.0,
         "specific": -1.0 / (number + 1) - 0.01, "p_value": 0.01, "next": -0.1, "divergence": 0.2, "changed": 0.3,
         "q_value": 0.02, "token": VOCABULARY[number % len(VOCABULARY)]}
        for reach in ("total", "direct")
        for number in range(60)
    ]  # fmt: skip
    tables.write(pd.DataFrame(memories), folder / "intervention/intervention_memories.csv")


def write_roles(folder: Path, layers: int, signed: bool, generator: np.random.Generator) -> None:
    roles = ("enrichment", "conditional enrichment", "orthogonal output", "depletion", "atypical depletion")
    counts = {
        "layer": np.repeat(np.arange(layers), len(roles)),
        "role": roles * layers,
        "memories": MEMORIES // len(roles),
    }
    types = pd.DataFrame(counts).assign(share=lambda table: table["memories"] / MEMORIES)
    rows = [
        {"layer": layer, "column": column, "memories": MEMORIES, "mean": centre, "low": centre - 0.3, "q1": centre - 0.1,
         "median": centre, "q3": centre + 0.1, "high": centre + 0.3, "null_mean": 0.0, "null_low": -0.1, "null_high": 0.1,
         "significant": 3.0 + layer}
        for layer in range(layers)
        for column, centre in (("key_value_cosine", 0.3 - 0.05 * layer), ("gate_value_cosine", 0.01), ("ignored_share", 0.02))
    ]  # fmt: skip
    cases = [
        {"layer": layer, "case": case, "examples": 4, "share": 0.25, "memories": 2, "memory": layer % MEMORIES,
         "coefficient": -1.5, "text": HOSTILE[layer % len(HOSTILE)], "next_token": VOCABULARY[layer % len(VOCABULARY)]}
        for layer in range(layers if signed else 0)
        for case in CASES_OF_SIGNS
    ]  # fmt: skip
    written = (BY_LAYER.frame(rows), TYPES_BY_LAYER.frame(types), SIGN_CASES.frame(cases))
    for name, table in zip(("by_layer", "types", "sign_cases"), written, strict=True):
        tables.write(table, folder / f"roles/{name}/0.parquet")
    place = pd.MultiIndex.from_product([range(layers), range(MEMORIES)], names=["layer", "memory"]).to_frame(
        index=False
    )
    numbers = {
        column.name: generator.random(len(place)) for column in ROLES.columns if column.dtype.startswith("float")
    }
    words = {"role": "enrichment", "output_role": "other"}
    tables.write(ROLES.frame(place.assign(**numbers, **words)), folder / "roles/by_memory/0.parquet")


def write_costs(folder: Path) -> None:
    for name, seconds, memory in (
        ("triggers/0", 61.5, 812.3),
        ("triggers/1", 58.5, "-"),
        ("values", 0.3, 101.0),
        ("report", 3, 99),
    ):
        path = folder / "benchmarks" / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"s\th:m:s\tmax_rss\n{seconds}\t0:01:01\t{memory}\n")


def write_behaviour_graph(folder: Path, behaviour: str, layers: int, generator: np.random.Generator) -> None:
    """A graph of four memories of two layers, if there are two. The edges lead to later layers and to the answer."""
    kinds = ["graph", "random", "random", "resampled", "resampled", "none", "all"]
    sets = pd.DataFrame({"choice": kinds, "draw": [0, 0, 1, 0, 1, 0, 0], "memories": [4, 4, 4, 4, 5, 0, 24]})
    sets = sets.assign(
        prompts=9, jaccard=[1, 0, 0, 1, 0.5, 0, 0.1], chosen=0.81, reached=True, difference=3.0, patched=1.0
    )
    sets = sets.assign(kept=[0.8, 0.01, -0.02, 0.8, 0.7, 0, 1], low=0.6, high=0.9)
    nodes = pd.DataFrame(
        {"layer": [0, 0, *[min(1, layers - 1)] * 2], "memory": range(4), "effect": [2.0, 0.5, 1.5, -0.4]}
    )
    nodes = nodes.assign(low=nodes["effect"] - 0.3, high=nodes["effect"] + 0.3, loss=0.2, loss_low=0.1, loss_high=0.3)
    nodes = nodes.assign(stability=[1, 0.75, 1, 0.2], passed_on=1.0, token=VOCABULARY[:4])
    edges = pd.DataFrame(
        {"source": [0, 2, 1, 3, 0], "target": [2, -1, 3, -1, -1], "effect": [1.5, 1.2, -0.3, -0.4, 0.01]}
    )
    edges = edges.assign(change=1.0, share=0.5, low=edges["effect"] - 0.1, high=edges["effect"] + 0.1)
    edges = edges.assign(shown=[True, True, True, True, False], stability=[1, 1, 0.4, 0.9, 0])
    paths = pd.DataFrame({"source": [0, 1], "target": [2, 3], "factor": "key"})
    paths[["held", "direct", "total", "total_m"]] = generator.random((2, 4))
    paths["attention"] = paths["total"] - paths["direct"]
    for table, frame in zip(ALL_GRAPHS, (sets, nodes, edges, paths), strict=True):
        tables.write(table.frame(frame.assign(behaviour=behaviour)), folder / table.path)


def write_concepts(folder: Path, generator: np.random.Generator) -> None:
    """Curves over ten sizes, and three tasks, of which one has no texts."""
    curves = []
    for features, sizes in zip(FEATURES.choices, ([2**n for n in range(10)],) * 3 + ([64],), strict=True):
        auc = np.sort(generator.uniform(0.5, 0.95, len(sizes)))
        row = {"features": features, "tasks": 2, "error": 0.02, "f1": 0.7, "accuracy": 0.7}
        curves += [{**row, "size": n, "auc": a, "low": a - 0.04, "high": a + 0.04} for n, a in zip(sizes, auc)]
    tables.write(CURVES.frame(curves), folder / CURVES.path)
    row = {column.name: float(generator.random()) for column in TASKS.columns if column.dtype == "float64"}
    row |= {"concept": "french", "best_layer": 0, "best_memory": 1, "left_out": ""}
    row |= {"train": 40, "test": 40, "positives": 40, "documents": 80}
    found = [row | {"task": f"french/{number}", "positive": "".join(HOSTILE[:3])} for number in range(3)]
    found[2] |= {"train": 0, "test": 0, "best_layer": np.nan, "best_memory": np.nan, "left_out": "too few texts"}
    tables.write(TASKS.frame(found), folder / TASKS.path)


def write_routing(folder: Path, layers: int) -> None:
    """Layers of eight experts, of which the last one gets no token, and the first one most tokens of a pattern."""
    generator = np.random.default_rng(5)  # of its own: the tables after these stay as they are
    has, load, experts, patterns = generator.random(1000) < 0.1, [], [], []
    for layer in range(layers):
        sent = (generator.random((1000, 8)) < 0.25) & (np.arange(8) < 7)
        sent[has, 0] = True
        load.append({"layer": layer, **routing.load_of(sent)})
        experts += [{"layer": layer, "expert": at, "tokens": n, "share": n / 1000} for at, n in enumerate(sent.sum(0))]
        patterns += [{"layer": layer, "q": row["p"], **row} for row in routing.rows_of_patterns(sent, {"digits": has})]
    for table, rows in ((of_routing.LOAD, load), (of_routing.EXPERTS, experts), (of_routing.PATTERNS, patterns)):
        tables.write(table.frame(rows), folder / table.path)
