"""A run that is known without a look at files."""

from ffkv.branches.settings import Settings
from ffkv.model.shape import Shape
from ffkv.plan.facts import RunFacts, Split
from ffkv.workflow.jobs import Job

SHAPE = Shape("Hand", (8, 16), 4, 10, 400, 256, 80, "float32", 4, signed=False)
TEXT = {"train": Split(1000, 100, 10, 5000, 2, ""), "validation": Split(300, 30, 3, 1500, 1, "")}


def facts(shape: Shape = SHAPE, sentences: list[str] | None = None, **settings) -> RunFacts:
    """A run of a small model, with nothing done. 50 prefixes are sampled."""
    named = {"model": {"checkpoint": "somewhere"}, "prefixes": {"count": 50}, **settings}
    return RunFacts(Settings(**named), shape, TEXT, {}, sentences or [])


def job(rule: str, number: int = 0, done: bool = False) -> Job:
    """One of the jobs of a rule."""
    return Job(rule, "mine", 1, f"ffkv {rule}", [], [f"{rule}/{number}"], done)
