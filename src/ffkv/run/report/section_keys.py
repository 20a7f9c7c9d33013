"""What the page says about keys."""

from markupsafe import Markup

from ffkv.run.report.page_tables import agreement_of_annotators, data_table, scores_of_machines
from ffkv.run.report.section import TableBlock, Words
from ffkv.run.report.text import change
from ffkv.run.report.wording import course, rows, share_with_pattern, weighted_mean
from ffkv.run.results.run import Run
from ffkv.run.results.text import number, percent, visible

NO_PRECISION = "The model runs in {dtype}. What that does to trigger examples was not measured: keys.precision is off."
PRECISION = (
    "The coefficients of the sampled keys' trigger examples were computed again in float32, with the same weights "
    "({dtype}). The table shows the error of the coefficients relative to themselves, the share of keys whose first "
    "trigger example remains the first, and the share of trigger examples in the upper half of a key's list that remain "
    "there. It does not show the effect of rounding the weights themselves."
)
AGREEMENT = (
    "How far annotators agree about the same keys. Prefixes: whether both give a prefix the same category of figure 2. Patterns: "
    "how many prefixes the patterns of both share, of those that either has (Jaccard index, patterns matched one to one). “Raw” is "
    "the share of equal judgements. Kappa and alpha are 0 if annotators agree as often as by chance, and 1 if they always agree. "
    "The interval is over keys. People and machines saw neither the layer nor the memory, and some of their keys "
    "were random prefixes."
)
MACHINES = (
    "How good the labels are by which language models explain memories. A label is made from some trigger examples of a memory, "
    "and scored on others, beside prefixes on which the memory is silent. Detection and fuzzing: the mean of the shares of both "
    "kinds that were told rightly. Of “the same word”, both kinds end with the same word. Simulation: the correlation of expected "
    "and true coefficients. Intruder: the share of sets in which the silent prefix was found, without a label. The interval is "
    "over memories."
)
TIED = (
    "Coefficients that differ by less than 0.01 % are tied, and the prefix that comes first in the corpus counts. Ties are "
    "common where many prefixes reach the lowest point of an activation function such as GELU, and in the first layer of "
    "models whose attention and feed-forward layer run in parallel: it sees the last token only."
)
MANY_FIRST_TOKENS = 0.1  # share of a layer's trigger examples that have one token alone, above which the page warns


def summarize(run: Run) -> list[str]:
    """Layers in which nothing fires, patterns, and the removal of tokens."""
    return [*_silent_layers(run), _patterns(run), _removal(run)]


def _silent_layers(run: Run) -> list[str]:
    activity = run.table("activity")
    silent = activity.loc[activity["dead"] == activity["keys"], "layer"].tolist()
    if not silent:
        return []
    where = "any layer" if len(silent) == len(activity) else f"layer {', '.join(map(str, silent))}"
    return [
        f"No key of {where} fires: none has a trigger example, so all that follows about trigger examples is without them."
    ]


def _patterns(run: Run) -> str:
    patterns = run.table("figure_2_pattern_counts")
    trigger, random = rows(patterns, sample="trigger"), rows(patterns, sample="random")
    with_pattern, by_chance = (share_with_pattern(table) for table in (trigger, random))
    examples = rows(run.table("figure_2_categories"), sample="trigger")
    families = (examples[examples["category"].isin([name, "shallow and semantic"])] for name in ("shallow", "semantic"))
    shallow, semantic = (family.groupby("layer", as_index=False)["share"].sum() for family in families)
    return (
        f"Of {number(trigger['keys'].sum())} keys, {percent(with_pattern)} have a pattern in their trigger examples "
        f"(in random prefixes: {percent(by_chance)}). Share of trigger examples with a shallow pattern: "
        f"{course(shallow, 'share')}. Share with a semantic pattern: {course(semantic, 'share')}."
    )


def _removal(run: Run) -> str:
    removal = run.table("figure_3_removal")
    last, first = (weighted_mean(rows(removal, removed=removed), "change", "keys") for removed in ("last", "first"))
    return (
        f"When the last token of a trigger example is removed, the coefficient of its key changes by {change(last)} on "
        f"average. When the first token is removed, it changes by {change(first)}."
    )


def _key_tables(run: Run) -> list[TableBlock]:
    activity = [("How often keys fire, per layer", data_table(run, "activity"))]
    blocks = [TableBlock(text=describe_first_tokens(run)), TableBlock(text=describe_ties(run), folded=activity)]
    if "precision" in run.tables:
        folded = [("Effect of the weights' type on trigger examples, per layer", data_table(run, "precision"))]
        blocks.append(TableBlock(text=PRECISION.format(dtype=run.anatomy.dtype), folded=folded))
    elif run.settings.model.dtype != "float32":
        blocks.append(TableBlock(text=NO_PRECISION.format(dtype=run.anatomy.dtype)))
    return blocks


def describe_first_tokens(run: Run) -> Markup:
    """Says how many trigger examples have one token alone, and warns if these are many."""
    activity = run.table("activity")
    many = activity[activity["one_token"] > MANY_FIRST_TOKENS]
    text = f"Trigger examples of one token alone: {course(activity, 'one_token')}."
    if len(many):
        layers = ", ".join(map(str, many["layer"]))
        text += (
            f" Warning: they are more than {percent(MANY_FIRST_TOKENS)} in layer{'s' * (len(many) > 1)} {layers}. Many"
            " models treat the first position apart, whatever token is there. Then these keys detect the position, not"
            " the word."
        )
    return Markup("{} {}").format(text, visible(run.files.corpora["train"]["beginning"]))


def describe_ties(run: Run) -> str:
    """Says for how many keys the corpus decides which trigger example is the first, of both signs."""
    activity = run.table("activity")
    of_signs = {"trigger example": "tied", "negative trigger example": "negative_tied"}
    told = [
        f"The first {which} is tied with the second for {number(activity[column].sum())} of"
        f" {number(activity['keys'].sum())} keys: {course(activity.assign(tied=activity[column] / activity['keys']), 'tied')}."
        for which, column in of_signs.items()
        if column in activity
    ]
    return " ".join([*told, TIED])


def _agreement(run: Run) -> list[TableBlock]:
    """Returns how far annotators agree, and how good the labels of machines are, if there are any."""
    found = []
    if "agreement" in run.tables and len(run.table("agreement")):
        folded = [("All columns", data_table(run, "agreement"))]
        table = agreement_of_annotators(run)
        found.append(TableBlock("agreement", "Agreement between annotators", AGREEMENT, table, folded))
    if "machine_scores_by_layer" in run.tables and len(run.table("machine_scores_by_layer")):
        folded = [("All columns", data_table(run, "machine_scores_by_layer"))]
        found.append(TableBlock("machines", "Labels of machines", MACHINES, scores_of_machines(run), folded))
    return found


WORDS = Words(summarize, _key_tables, _agreement)
