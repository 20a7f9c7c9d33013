"""The step of the wing `apps`."""

from ffkv.base.steps import Step

STEPS = {"annotate_agreement": Step("ffkv.apps.annotation.step:compare_annotators", imports="model")}
