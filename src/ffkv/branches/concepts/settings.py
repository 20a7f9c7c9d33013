"""The settings of a concept: texts with two labels, or rules, and what is asked about them."""

from typing import Annotated, Any, Literal

from pydantic import Field

from ffkv.base.settings.messages import shown, suggestion
from ffkv.base.settings.section import Name, Section, Whole

# What a file calls its fields, in the order in which they are looked for.
FIELDS = {
    "text": ("text", "prompt"),
    "label": ("label", "target"),
    "document": ("document", "group"),
    "split": ("split",),
}


class Concept(Section):
    """Texts with two labels, or rules that label tokens: do memories separate them (docs/settings.md)?"""

    labels: str = ""
    """File of texts with labels: csv, tsv or jsonl, which may be packed (.gz, .bz2, .zst). Its fields are `text` (or `prompt`), `label`
    (or `target`), and, if it has them, `document` (or `group`) and `split` (`train` or `test`). A pattern such as `tasks/*.csv` names
    several tasks, and so does `package:sae_probes/*`: data files in a Python package, by their names without endings. No code of the
    package runs."""
    rules: Literal["", "text", "code", "speech"] = ""
    """Rules that label tokens of the train split, in place of a file: of `text` (digits, capitals, punctuation, ...), of `code` and
    LaTeX, or parts of `speech`. Each rule is a task."""
    pipeline: str = "en_core_web_sm"
    """The pipeline of spaCy, an installed package or a folder, that tells parts of speech."""
    fields: dict[str, str] = Field({})
    """What the file calls its fields, by ffkv's names: `{text: question, label: is_true}`."""
    positive: str = ""
    """The label against which all others are taken together. Without it, a file must have two labels: the second one in the order of
    the alphabet is positive."""
    texts: Whole = Field(400, ge=20)
    """Maximum number of texts, or of tokens that a rule labels. A quarter is drawn of each label in each half."""
    value: Literal["last", "largest"] = "last"
    """Which coefficient of a memory counts in a text: that at the `last` token, or the `largest` one over all tokens."""
    longest: Whole = Field(256, ge=1)
    """Maximum number of tokens that are read of a text: its last ones."""
    sizes: list[Annotated[Whole, Field(ge=1)]] = Field([2**n for n in range(10)], min_length=1, max_length=100)
    """Numbers k: a logistic regression takes the first k memories of the ranking."""
    regularization: list[Annotated[float, Field(gt=0)]] = Field([1.0], min_length=1, max_length=100)
    """Inverse strengths C of the regression's penalty. Of several, the best one on the last fifth of the train half is taken."""
    shuffles: int = Field(999, ge=19, le=1_000_000)
    """Number of times that labels are shuffled. The smallest possible p-value is 1 / (shuffles + 1)."""
    draws: int = Field(200, ge=20, le=100_000)
    """Number of times that documents of the test half are drawn again, for intervals."""

    def contradictions(self) -> list[str]:
        """There is a file or rules; sizes ascend; fields are those that ffkv reads."""
        both = "labels and rules: one of them must be set, and not both"
        found = [both] if bool(self.labels) == bool(self.rules) else []
        strange = [name for name in self.fields if name not in FIELDS]
        found += [
            f"fields has no {shown(name)}.{suggestion(name, FIELDS)} ffkv reads: {', '.join(FIELDS)}"
            for name in strange
        ]
        if self.sizes != sorted({*self.sizes}):
            found += [f"sizes is {shown(self.sizes)}: must be different numbers, ascending"]
        return found


ABOUT = """Name of a concept: its settings. For example, `french: {labels: french.csv}` asks which memories separate the two labels of
these texts, and `tokens: {rules: text}` which ones separate digits, capitals and punctuation from other tokens."""
CONCEPTS: Any = (dict[Name, Concept], Field({}, description=ABOUT))
