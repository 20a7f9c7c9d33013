"""One expert of a run: its memories, the tokens that are sent to it, and what it does on behaviours."""

from typing import TYPE_CHECKING

import pandas as pd

from ffkv.run.results.memory_name import expert_name, find_expert

if TYPE_CHECKING:
    from ffkv.run.results.run import Run


class Expert:
    """An expert that a router chooses. Tables are read when they are asked for; without rows if the run did not measure them.

    Attributes:
        layer: the layer, from 0.
        expert: the expert in its layer, from 0. Shared experts, which read every token, do not count.
        name: both in one word: "L3.e5".
        of: how many experts the layer has.
        run: the run.
    Examples:
        >>> ffkv.open("results/tiny").expert("L1.e2")
        Traceback (most recent call last):
            ...
        ffkv.base.errors.UserError: There is no expert 2 in layer 1. The layer has no experts that a router chooses.
    """

    def __init__(self, run: "Run", name: str):
        """Use `Run.expert`."""
        self.run = run
        self.layer, self.expert = find_expert(name, run.anatomy.layers)
        self.name, self.of = expert_name(self.layer, self.expert), len(run.anatomy.layers[self.layer].experts)

    def __repr__(self) -> str:
        return f"<Expert {self.name} of {self.run.name}>"

    @property
    def memories(self) -> pd.DataFrame:
        """Its memories, with the columns of `Run.memories`, those that add the longest vectors to the residual first."""
        return self.run.memories(expert=self.name, sort="contribution")

    @property
    def load(self) -> pd.DataFrame:
        """How many tokens are sent to it: its row of the table `routing_experts`, see docs/formats.md."""
        return self._own("routing_experts")

    @property
    def patterns(self) -> pd.DataFrame:
        """How many tokens with each pattern are sent to it: its rows of the table `routing_patterns`, the smallest q first."""
        return self._own("routing_patterns").sort_values("q", kind="stable", ignore_index=True)

    @property
    def effects(self) -> pd.DataFrame:
        """What it does on behaviours: its rows of the table `behaviour_experts`, see docs/formats.md."""
        return self._own("behaviour_experts")

    def _own(self, name: str) -> pd.DataFrame:
        if name not in self.run.tables:
            return pd.DataFrame(columns=["layer", "expert", "q"])
        return self.run.table(name).query(f"layer == {self.layer} and expert == {self.expert}").reset_index(drop=True)
