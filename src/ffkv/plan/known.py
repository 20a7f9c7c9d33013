"""What is known of a run before its trial: the shape of its model, the size of its text, what it needs of hub and GPUs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ffkv.base.settings import EMBEDDED, Settings
from ffkv.plan.devices import DevicePlan, gpu_sizes, plan_devices
from ffkv.plan.hub import Download, find_downloads, resolve_commits
from ffkv.plan.shape import Shape, load_model_form, measure_shape
from ffkv.plan.text import Split, measure_text
from ffkv.workflow.jobs import Job


class Known(NamedTuple):
    """What is known of a run.

    Attributes:
        settings: its settings, see `as_trained`.
        shape: the shape of its model.
        text: the sizes of "train" and "validation".
        sentences: some sentences of its corpus.
        downloads: what it reads of the hub.
        device: what a job that runs the model needs of GPUs.
    """

    settings: Settings
    shape: Shape
    text: dict[str, Split]
    sentences: list[str]
    downloads: list[Download]
    device: DevicePlan

    @property
    def sampled(self) -> int:
        """Number of sampled prefixes: as many as are asked for, or all that the validation split has."""
        validation = self.text["validation"]
        return int(min(self.settings.prefixes.count, validation.tokens - validation.sentences))

    def as_dict(self) -> dict[str, Any]:
        """What JSON has of it."""
        sizes = {"layers": len(self.shape.memories), "all_memories": sum(self.shape.memories)}
        return {
            "shape": self.shape._asdict() | sizes,
            "text": {name: split._asdict() for name, split in self.text.items()},
            "downloads": [one._asdict() for one in self.downloads],
            "device": self.device._asdict(),
        }


def look(settings: Settings, jobs: Sequence[Job], tokens: Mapping[str, int], gpus: Sequence[float]) -> Known:
    """Finds out the sizes of a run. For the arguments and errors see `make_plan`; `jobs` are those of this run."""
    written = {Path(job.outputs[0]).stem: Path(job.outputs[0]) for job in jobs if job.rule == "corpus" and job.done}
    commits = resolve_commits(settings, [job for job in jobs if job.rule == "resolve_commit"])
    form = load_model_form(settings, commits.get("model"))
    shape = measure_shape(form, settings.model.second_matrix)
    text, sentences = measure_text(settings, form, written, tokens, commits)
    downloads = find_downloads(settings, commits, written)
    return Known(settings, shape, text, sentences, downloads, plan_devices(form, settings, shape, gpus or gpu_sizes()))


def as_trained(settings: Settings, runs: Mapping[str, Settings], jobs: Sequence[Job]) -> Settings:
    """The settings of a run; if another run has yet to train its checkpoint, with the model of that run."""
    checkpoint = Path(settings.model.checkpoint)
    for job in jobs:
        if job.rule == "train" and not job.done and {checkpoint, *checkpoint.parents} & {*map(Path, job.outputs)}:
            model = settings.model.model_copy(update={"checkpoint": EMBEDDED})
            return settings.model_copy(update={"model": model, "embedded": runs[job.run].embedded})
    return settings
