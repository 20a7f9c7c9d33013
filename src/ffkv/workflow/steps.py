"""The step of each rule whose output has numbers."""

from ffkv.activations.steps import STEPS as ACTIVATIONS
from ffkv.apps.steps import STEPS as APPS
from ffkv.base.steps import Step
from ffkv.branches.registry import BRANCHES
from ffkv.corpus.steps import STEPS as CORPUS
from ffkv.model.steps import STEPS as MODEL
from ffkv.run.steps import STEPS as RUN

STEPS: dict[str, Step] = {**CORPUS, **MODEL, **ACTIVATIONS}
for _branch in BRANCHES.values():
    STEPS |= _branch.rules
STEPS |= {**APPS, **RUN}
