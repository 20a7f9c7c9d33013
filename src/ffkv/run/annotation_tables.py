"""The tables of what people and machines said about a run, which `ffkv annotate agreement` writes."""

from dataclasses import replace

from ffkv.base.files.columns import LAYER, Column, Table, count, interval, layer, number, share, table, text, word
from ffkv.branches.keys import tables as keys

ANNOTATOR = text("annotator", "`person:<name>`, `machine:<name>` or `tests`")
OF_KEY = (
    ANNOTATOR,
    count("occasion", "how often the annotator had judged the item before"),
    keys.SAMPLE,
    word("sheet", "name of the sheet"),
    LAYER,
    count("memory", "the memory; of a control its number"),
)
OF_TESTS = {column.name: column for column in (*keys.PATTERNS.columns, *keys.BY_PREFIX.columns)}
ASKED = tuple(
    Column(name, "Int64", about, "1", 0)
    for name, about in (
        ("asked", "questions that were asked"),
        ("answered", "questions with an answer that can be read"),
        ("refused", "questions with another answer"),
    )
)
SCORE = text("score", "`detection`, `same_word`, `fuzzing`, `simulation` or `intruder`")
CHANCE = share("chance", "score of an answer by chance")


def _table(name: str, about: str, *columns: Column) -> Table:
    return table(f"annotation/{name}", about, *columns, only="if people or machines judged or explained keys")


PATTERNS = _table(
    "patterns.parquet",
    "A pattern that an annotator saw in a key.",
    *OF_KEY,
    replace(OF_TESTS["pattern"], about="number of the pattern in the judgement, from 0"),
    *(OF_TESTS[name] for name in ("family", "label", "prefixes", "ranks")),
)
BY_PREFIX = _table("by_prefix.parquet", "A prefix of a judged key.", *OF_KEY, OF_TESTS["rank"], OF_TESTS["category"])
ANNOTATORS = _table(
    "annotators.csv",
    "An annotator.",
    ANNOTATOR,
    count("keys", "keys that are judged"),
    count("keys_with_pattern", "those with a pattern"),
    number("patterns_per_key", "mean number of patterns per key", lowest=0),
    share("coverage", "share of prefixes that have a pattern"),
    count("controls", "sets of random prefixes that are judged"),
    count("controls_with_pattern", "those with a pattern"),
    share("false_positive_rate", "controls_with_pattern / controls"),
    *interval("Wilson interval (95 %)"),
)
FIGURE_2 = _table(
    "figure_2_by_annotator.csv",
    "An annotator, a layer and a category.",
    ANNOTATOR,
    LAYER,
    keys.CATEGORY,
    count("prefixes", "prefixes of the category"),
    count("keys", "keys that are judged"),
    share("share", "share of all prefixes"),
)
AGREEMENT = _table(
    "agreement.csv",
    "Two annotators and a statistic of their agreement.",
    text("first", "an annotator; `people`: all of them"),
    text("second", "another annotator"),
    text("unit", "what is compared: `prefix`, `key`, `pattern` or `change`"),
    text("statistic", "`raw`, `kappa`, `alpha`, `alpha_masi` or `jaccard`"),
    number("value", "its value", highest=1),
    number("low", "lower end of its interval over keys, or changes (95 %)", highest=1),
    number("high", "upper end", highest=1),
    count("keys", "keys that both judged"),
    count("units", "prefixes, keys, pairs of patterns or changes that both judged"),
)
CHANGES = _table(
    "related_changes.csv",
    "An annotator and a sample: whether the tokens of prediction changes are related.",
    ANNOTATOR,
    keys.SAMPLE,
    count("changes", "changes that are judged"),
    count("related_changes", "those between related tokens"),
    count("unsure", "those that the annotator is not sure of"),
    share("share", "related_changes / changes"),
    *interval("Wilson interval (95 %)"),
)
OF_MEMORY = (ANNOTATOR, LAYER, count("memory", "the memory in its layer, from 0"))
LABELS = _table(
    "machine_labels.parquet",
    "A memory that a machine explained.",
    *OF_MEMORY,
    text("label", "the explanation; empty if there is none"),
    text("refusal", "why there is none"),
    count("shown", "trigger examples that the machine saw"),
    count("held_out", "trigger examples that it did not see"),
    count("silent", "prefixes on which the memory is silent"),
    number("threshold", "coefficient above which a prefix counts as a trigger example"),
)
SCORES = _table(
    "machine_scores.parquet",
    "A memory and a score of its explanation.",
    *OF_MEMORY,
    SCORE,
    word("label", "whose label is scored", "own", "other", "none"),
    *ASKED,
    count("texts", "texts in the questions"),
    number("value", "the score", highest=1),
    share("sensitivity", "share of trigger examples that are told rightly"),
    share("specificity", "share of silent prefixes that are told rightly"),
    CHANCE,
)
BY_LAYER = _table(
    "machine_scores_by_layer.csv",
    "An annotator, a layer and a score.",
    ANNOTATOR,
    layer("the layer, from 0; -1: all layers"),
    SCORE,
    text("label", "whose label is scored; `own - other`: the difference"),
    count("memories", "memories with this score"),
    *ASKED,
    number("mean", "mean over memories", highest=1),
    number("low", "lower end of its interval over memories (95 %)", highest=1),
    number("high", "upper end", highest=1),
    CHANCE,
)
# The files of a machine, and the table that each becomes a part of: the same columns behind the annotator.
MACHINE_FILES = {"labels.csv": LABELS, "scores_by_memory.csv": SCORES, "scores.csv": BY_LAYER}
TABLES = (PATTERNS, BY_PREFIX, ANNOTATORS, FIGURE_2, AGREEMENT, CHANGES, LABELS, SCORES, BY_LAYER)
