"""The tables of the branch `keys`."""

from ffkv.base.files.columns import LAYER, MEMORY, NEGATIVE, Column, bounds, count, number, share, table, text, word

CATEGORIES = ("shallow", "shallow and semantic", "semantic", "none")
FAMILIES = ("shallow", "semantic")
REMOVED = ("first", "last", "random")
SAMPLE = word("sample", "what the prefixes are: trigger examples, or random prefixes as a control", "trigger", "random")
OF_KEY = count("memory", "the memory; of random prefixes the number of the set")
CATEGORY = word("category", "which families of patterns a prefix has", *CATEGORIES)

PATTERNS = table(
    "keys/patterns/{group}.parquet",
    "A pattern in the trigger examples of a sampled key, or in a set of random prefixes.",
    SAMPLE,
    LAYER,
    OF_KEY,
    count("pattern", "number of the pattern in its key, from 0"),
    word("kind", "kind of the feature that the prefixes share, such as `last word`"),
    word("family", "family of the pattern", *FAMILIES),
    text("label", "the pattern in words"),
    count("prefixes", "prefixes that have the pattern"),
    share("chance", "probability that a random prefix has it"),
    share("p_value", "probability of as many prefixes by chance"),
    share("q_value", "p-value, adjusted for all patterns of the layer and family"),
    Column("ranks", "object", "ranks of these prefixes among the trigger examples of the key, from 0"),
)
BY_PREFIX = table(
    "keys/by_prefix/{group}.parquet",
    "A trigger example of a sampled key, or a random prefix.",
    SAMPLE,
    LAYER,
    OF_KEY,
    count("rank", "rank among the trigger examples of the key, from 0"),
    CATEGORY,
)
WHICH = word("removed", "which token is removed", *REMOVED)
COUNTED = (
    count("triggers", "trigger examples that are measured"),
    count("skipped", "trigger examples that have no such token"),
)
REMOVAL = table(
    "keys/removal/{group}.parquet",
    "A sampled key and a token that is removed from its trigger examples.",
    LAYER,
    MEMORY,
    WHICH,
    *COUNTED,
    number("change", "mean relative change of the coefficient", "%"),
)
PRECISION_KEYS = 25  # per layer, at most: each has many trigger examples, and they are read in float32
PRECISION = table(
    "keys/precision.csv",
    "How the number type of the weights changes the trigger examples of a layer.",
    LAYER,
    count("keys", f"sampled keys, at most {PRECISION_KEYS}"),
    count("triggers", "trigger examples"),
    number("error_median", "median of |m - exact| / |m|, where exact is computed in float32", lowest=0),
    number("error_largest", "largest of these", lowest=0),
    share("first_stays", "share of keys whose first trigger example remains the first"),
    share("upper_half_stays", "share of trigger examples in the upper half that remain there"),
    only="if `model.dtype` is not float32 and `keys.precision` is true",
    applies=lambda settings: settings.model.dtype != "float32" and settings.keys.precision,
)
FIGURE_2_CATEGORIES = table(
    "keys/figure_2_categories.csv",
    "A layer, sample and category: how many prefixes have it.",
    SAMPLE,
    LAYER,
    CATEGORY,
    count("prefixes", "prefixes of the category"),
    share("share", "share of all prefixes"),
)
FIGURE_2_PATTERN_COUNTS = table(
    "keys/figure_2_pattern_counts.csv",
    "A layer and sample: how many keys have patterns.",
    SAMPLE,
    LAYER,
    count("keys", "sampled keys with trigger examples"),
    count("keys_with_pattern", "keys with a pattern"),
    number("patterns_per_key", "mean number of patterns per key", lowest=0),
    share("coverage", "share of prefixes that have a pattern"),
)
FIGURE_3 = table(
    "keys/figure_3_removal.csv",
    "A layer and a token that is removed from trigger examples.",
    LAYER,
    WHICH,
    count("keys", "keys with a trigger example that is measured"),
    *COUNTED,
    number("change", "mean over keys of the relative change of the coefficient", "%"),
    *bounds("its interval over keys (95 %)", unit="%"),
    number("median", "median over keys", "%"),
)
QUARTILES = ("q1", "median", "q3")
ACTIVITY = table(
    "keys/activity.csv",
    "How often the keys of a layer fire.",
    LAYER,
    count("keys", "all keys"),
    count("dead", "keys without a trigger example"),
    count("fewer", "keys with fewer than t trigger examples"),
    share("one_token", "share of trigger examples that have one token alone"),
    count("tied", "keys whose first trigger example is tied with the second"),
    *(share(f"firing_{part}", f"{part} over keys of the share of prefixes with m > 0") for part in QUARTILES),
    count("negative_tied", "keys whose first negative trigger example is tied with the second", optional=NEGATIVE),
    *(
        share(f"negative_{part}", f"{part} over keys of the share of prefixes with m < 0", optional=NEGATIVE)
        for part in QUARTILES
    ),
)
