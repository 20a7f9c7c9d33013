"""The settings of the branch `keys`: patterns and the removal of tokens."""

from pydantic import Field

from ffkv.base.settings.section import Section, Whole


class Keys(Section):
    """Patterns in trigger examples, and the removal of tokens (paper section 3.2)."""

    per_layer: Whole = Field(100, ge=1)
    """Number of random keys per layer that are analysed."""
    pattern_triggers: Whole = Field(25, ge=3)
    """Number of trigger examples per key that are searched for patterns."""
    minimum_prefixes: Whole = Field(3, ge=2)
    """Minimum number of a key's trigger examples that must share a feature for it to count as a pattern."""
    false_discovery_rate: float = Field(0.05, gt=0, lt=1)
    """Expected share of false patterns among the patterns that are reported (Benjamini-Hochberg). It holds for each
    layer and each family of patterns."""
    background_prefixes: int = Field(20_000, ge=100, le=10_000_000)
    """Number of random train prefixes from which chance frequencies are estimated."""
    removal_triggers: Whole = Field(5, ge=1)
    """Number of trigger examples per key from which tokens are removed. The paper takes 50."""
    precision: bool = True
    """Measure how the number type of the model changes the trigger examples, if `model.dtype` is not float32. The trigger
    examples of up to 25 keys per layer are read again in float32, one block at a time."""

    def contradictions(self) -> list[str]:
        """A pattern cannot need more trigger examples than are searched."""
        least, most = self.minimum_prefixes, self.pattern_triggers
        problem = f"keys.minimum_prefixes is {least}: must be at most keys.pattern_triggers, {most}"
        return [problem] if least > most else []
