"""The settings of the branch `intervention`: what memories cause."""

from typing import Annotated

from pydantic import Field

from ffkv.base.settings.messages import shown
from ffkv.base.settings.section import Section, Whole


class Intervention(Section):
    """What memories cause: their coefficients (activations of neurons) are changed while the model runs."""

    memories: Whole = Field(10, ge=0)
    """Number of random memories per layer whose coefficients are changed. 0 means that no coefficient is changed and the
    report has no section of interventions."""
    examples: int = Field(5, ge=1, le=10_000)
    """Number of trigger examples per memory on which its coefficient is changed. They are drawn from those that are
    stored. If trigger examples with negative coefficients are stored, the same number of these is drawn too."""
    scales: list[Annotated[float, Field(ge=-100, le=100)]] = Field([0.0, 0.5, 2.0, -1.0], min_length=1, max_length=100)
    """Factors by which the coefficient is multiplied. Factor 0 removes the memory (zero ablation). It must be in the list,
    because the controls are compared with the removal."""
    tokens: int = Field(10, ge=1, le=100_000)
    """Number of top tokens of a value whose log-probabilities are measured. Only the `values.top_tokens` tokens that are
    stored can be measured."""
    controls: int = Field(99, ge=1, le=10_000)
    """Number of random memories of the same layer per memory, as a control. In place of the contribution, a vector of the
    same length along the value of such a memory is removed. The smallest possible p-value is 1 / (controls + 1)."""
    directions: int = Field(10, ge=0, le=10_000)
    """Number of random directions per memory, as a second control of the same length."""
    similar: int = Field(10, ge=0, le=10_000)
    """Number of other memories per prefix that are removed themselves, as a third control. Their contributions are about
    as long as the contribution of the memory."""
    similar_size: float = Field(0.1, gt=0, le=1)
    """Maximum difference between the length of the contribution of such another memory and that of the memory, as a share of
    the latter."""
    silent_below: float = Field(0.05, ge=0, le=1)
    """Size of its coefficient up to which a memory counts as silent on a prefix, as a share of the mean size on its own
    trigger examples. The placebo is the removal of a memory from prefixes on which it is silent, but not exactly 0."""
    top_k: list[Annotated[Whole, Field(ge=0)]] = Field([0, 1, 3, 10, 30, 100], min_length=1, max_length=100)
    """Numbers k, one measurement each: the k memories with the largest contributions keep their coefficients, or k random
    memories of the layer. The coefficients of all others become their means over the corpus (mean ablation)."""
    top_k_prefixes: Whole = Field(200, ge=1)
    """Number of sampled validation prefixes on which this is measured."""

    def contradictions(self) -> list[str]:
        """The removal is what controls are compared with. Each scale and each number is there once."""
        rules = {
            "scales: must contain 0, the removal, with which controls are compared": 0 in self.scales,
            "scales: must be different numbers": len({*self.scales}) == len(self.scales),
            "top_k: must be different numbers": len({*self.top_k}) == len(self.top_k),
        }
        broken = (rule.partition(":") for rule, holds in rules.items() if not holds)
        return [f"intervention.{name} is {shown(getattr(self, name))}: {rule.strip()}" for name, _, rule in broken]
