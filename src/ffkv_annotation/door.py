"""What annotation adds to ffkv, see `ffkv.base.doors`."""

from ffkv.base.doors import Command
from ffkv.base.steps import Rules, Step

ANNOTATE = Command(
    "Ask a finished run", "ffkv_annotation.commands:annotate", "Annotation: what people and machines say about keys."
)
RULES = Rules(annotate_agreement=Step("ffkv_annotation.step:compare_annotators", imports="model"))
