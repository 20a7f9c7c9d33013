"""The files that a finished run has, by its settings."""

from ffkv.base.settings import EMBEDDED, Settings, intervenes, measures_precision

# Folder: the tables that its rule `<folder>_summarize` writes as CSV files.
TABLES = {
    "keys": ("activity", "figure_2_categories", "figure_2_pattern_counts", "figure_3_removal"),
    "values": (
        "figure_4_agreement",
        "figure_5_rank",
        "figure_6_top_probability",
        "table_2_predictive_layers",
        "table_2_predictive_values",
    ),
    "composition": (
        "figure_7_active_memories",
        "figure_7_effective_number",
        "figure_8_agreement_cases",
        "figure_8_no_agreement",
    ),
    "refinement": (
        "figure_9_residual_agreement",
        "figure_10_final_probability",
        "figure_11_breakdown",
        "prediction_changes",
    ),
    "intervention": ("interventions_by_layer", "intervention_doses", "kept_memories", "intervention_memories"),
}
WHOLE = (
    "settings.json",
    "model",
    "values.h5",
    "corpus/train.h5",
    "corpus/validation.h5",
    "triggers.h5",
    "sampled_prefixes.h5",
)
BY_SHARD = ("sampled_prefixes/{}.h5",)  # those of triggers are deleted when they are merged
BY_LAYER_GROUP = (
    "keys/patterns/{}.parquet",
    "keys/by_prefix/{}.parquet",
    "keys/removal/{}.parquet",
    "values/projections/{}.h5",
    "values/by_memory/{}.parquet",
    "composition/by_prefix/{}.parquet",
    "refinement/by_prefix/{}.parquet",
)
INTERVENTION_BY_LAYER_GROUP = tuple(f"intervention/{name}/{{}}.parquet" for name in ("by_prefix", "by_memory", "kept"))


def expected_files(settings: Settings) -> list[str]:
    """The files, and the folders that are written as one, that the steps of a run write. Paths below its folder."""
    folders = [folder for folder in TABLES if folder != "intervention" or intervenes(settings)]
    names = [*WHOLE, *(f"{folder}/{table}.csv" for folder in folders for table in TABLES[folder])]
    names += ["checkpoint"] if settings.model.checkpoint == EMBEDDED else []
    names += ["keys/precision.csv"] if measures_precision(settings) else []
    names += [name.format(shard) for name in BY_SHARD for shard in range(settings.shards)]
    by_group = BY_LAYER_GROUP + (INTERVENTION_BY_LAYER_GROUP if intervenes(settings) else ())
    return names + [name.format(group) for name in by_group for group in range(settings.layer_groups)]
