"""The tables of the branch `roles`."""

from typing import Any

from ffkv.base.files.columns import Column, count, layer, number, share, table, text, word

COSINES = {
    "key_value": "cosine of key and value; of a gated memory the key is what the linear factor reads",
    "gate_value": "cosine of what the gate reads and the value; NaN without a gate",
    "gate_up": "cosine of what the gate and what the linear factor read; NaN without a gate",
}
TYPES = (
    *("enrichment", "conditional enrichment", "proportional change"),
    *("orthogonal output", "conditional depletion", "depletion"),
)
ATYPICAL = "atypical "
ALL_TYPES = (*TYPES, *(ATYPICAL + each for each in TYPES if each != "orthogonal output"), "")
OUTPUTS = ("prediction", "suppression", "other", "")
GATED = "in models with gates"
NO_MATRIX = "NaN if the head is no matrix on directions"
COSINE: dict[str, Any] = {"dtype": "float32", "lowest": -1, "highest": 1}
IGNORED = f"share of the value's squared length in directions that the head ignores; {NO_MATRIX}"
UNIGRAM = f"cosine of the value and the direction that the head reads as token frequency; {NO_MATRIX}"
CORRELATION = f"correlation, over the vocabulary, of the logits that the value writes and log-frequencies; {NO_MATRIX}"
READOUT = (
    share("ignored_share", IGNORED, "float32"),
    number("unigram_cosine", UNIGRAM, **COSINE),
    number("unigram_correlation", CORRELATION, **COSINE),
)
VARIANCE = "variance, over the vocabulary, of the logits of the value minus those of a vector of zeros"
MOMENTS = (
    number("logit_variance", VARIANCE, dtype="float32", lowest=0),
    number("logit_skewness", "their skewness; NaN if they are all alike", dtype="float32"),
    number("logit_kurtosis", "their kurtosis, 3 of a normal distribution; NaN if they are all alike", dtype="float32"),
)
ENDS = {
    f"{which}_in_{end}": f"share of trigger examples whose {what} is among the {end} tokens of the value; NaN if none has one"
    for which, what in (("next", "next token"), ("last", "own last token"))
    for end in ("top", "bottom")
}
ABOUT_CASES = {
    "both_positive": "gate and linear factor are positive",
    "both_negative": "both are negative",
    "gate_negative": "the gate alone is negative",
    "up_negative": "the linear factor alone is negative",
}
CASES = (*ABOUT_CASES,)


def _cosine(name: str, about: str) -> tuple[Column, ...]:
    return (
        number(f"{name}_cosine", f"{about}; NaN if a matrix is not known", **COSINE),
        share(f"{name}_p", "its two-sided p-value among permuted memories of the layer"),
        share(f"{name}_q", "adjusted for the memories of the layer (Benjamini-Hochberg)"),
    )


def _case(name: str, about: str) -> tuple[Column, ...]:
    side = "negative_triggers" if name in CASES[2:] else "triggers"
    return (
        count(name, f"trigger examples in which {about}", "int32", optional=GATED),
        number(f"first_{name}", f"rank of the first of them in the memory's {side}; -1 if there is none", dtype="int32",
               lowest=-1, optional=GATED),
    )  # fmt: skip


BY_MEMORY = table(
    "roles/by_memory/{group}.parquet",
    "A memory: what its weights alone say of its role, and its trigger examples beside its value.",
    layer(dtype="int32"),
    count("memory", "the memory in its layer, from 0", "int32"),
    *(column for name, about in COSINES.items() for column in _cosine(name, about)),
    word("role", "what it does to the direction that it reads; empty if its key is not known", *ALL_TYPES),
    *READOUT,
    *MOMENTS,
    word(
        "output_role",
        "whether it promotes few tokens (`prediction`) or demotes few (`suppression`); empty without logits",
        *OUTPUTS,
    ),
    *(share(name, about, "float32") for name, about in ENDS.items()),
    *(column for name, about in ABOUT_CASES.items() for column in _case(name, about)),
)
SUMMARIZED = (
    *(f"{name}_cosine" for name in COSINES),
    *(column.name for column in READOUT),
    *(column.name for column in MOMENTS),
    *ENDS,
)
BY_LAYER = table(
    "roles/by_layer/{group}.parquet",
    "A layer and a column of `roles/by_memory`: its numbers over the memories, beside chance.",
    layer(dtype="int32"),
    word("column", "the column", *SUMMARIZED),
    count("memories", "memories whose number is known"),
    number("mean", "their mean"),
    number("low", "2.5 % quantile"),
    number("q1", "first quartile"),
    number("median", "median"),
    number("q3", "third quartile"),
    number("high", "97.5 % quantile"),
    number(
        "null_mean",
        "mean by chance: of permuted memories; of a random direction for `ignored_share`; NaN for the others",
    ),
    number("null_low", "lower end of the middle 95 % of permuted memories; NaN where no p-value is computed"),
    number("null_high", "upper end of it"),
    number("significant", "memories with a q-value up to 0.05; NaN where no p-value is computed", lowest=0),
)
TYPES_BY_LAYER = table(
    "roles/types/{group}.parquet",
    "A layer and a type: how many memories are of it.",
    layer(dtype="int32"),
    word("role", "the type, as in `roles/by_memory`; empty if the key is not known", *ALL_TYPES),
    count("memories", "memories of the type"),
    share("share", "share of the layer's memories"),
)
SIGN_CASES = table(
    "roles/sign_cases/{group}.parquet",
    "A layer with gates and a case of the signs of both factors: how often it is, and its strongest trigger example.",
    layer(dtype="int32"),
    word("case", "; ".join(f"`{name}`: {about}" for name, about in ABOUT_CASES.items()), *CASES),
    count("examples", "stored trigger examples of the case, of both signs of the coefficient"),
    share("share", "share of the layer's trigger examples whose gate has a sign"),
    count("memories", "memories with such an example"),
    number("memory", "the memory with the strongest of them; -1 if there is none", dtype="int32", lowest=-1),
    number("coefficient", "its coefficient; NaN if there is none"),
    text("text", "its prefix"),
    text("next_token", "the token after it"),
)
