"""What the branch `reconstruction` is made of."""

from typing import Any

from ffkv.base.steps import MODULES, Step
from ffkv.branches.branch import Branch
from ffkv_dictionaries.reconstruction import tables


def _passes(run: Any) -> int:
    """Returns how often the model runs: as it is, and twice for each layer with a dictionary. `run`: see `Step.amount`."""
    from ffkv_dictionaries.choose import count_units  # needs torch, which plans have and rules do not wait for

    asked = run.settings.dictionary.located()
    cut = asked.layers or range(run.shape.layers)  # if no files say which layers they have
    return 1 + 2 * len(count_units(asked, run.shape.layers, run.shape.width) if asked.path else cut)


BRANCH = Branch(
    name="reconstruction",
    about="Reconstruction: how much of a layer's output its dictionary makes again.",
    split="validation",
    settings="ffkv_dictionaries.reconstruction.settings:Reconstruction",
    section="ffkv_dictionaries.reconstruction.section:SECTION",
    steps={
        "measure": Step(
            "ffkv_dictionaries.reconstruction.measure:measure_reconstruction",
            "Measure how much of each layer's output its dictionary makes again, and the loss without the rest.",
            reads=("model", "validation"),
            settings=("reconstruction", "seed", "batches/tokens", *MODULES, "model/max_memory"),
            writes=(tables.LAYERS,),
            imports="model",
            amount=lambda run: (
                _passes(run) * run.settings.reconstruction.tokens * (run.shape.body + run.shape.head),
                1,
            ),
        )
    },
    heading="Reconstruction",
    introduction="Units of a dictionary add up to a part of a layer's output. What they leave is its error, which is a part of its own "
    "wherever the output is taken apart.",
    figures={"reconstruction_by_layer": "What the dictionary makes again"},
    applies=lambda settings: settings.dictionary.is_asked,
)
