"""A finished run as a Workflow Run RO-Crate: one zip file, which WorkflowHub, Zenodo and other archives read.

It follows the profile Provenance Run Crate 0.5 (https://w3id.org/ro/wfrun/provenance/0.5): the workflow and its steps, what each job
read, wrote and took, and every file with its SHA-256. The library `rocrate` writes it.
"""

import hashlib
import mimetypes
import re
import warnings
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from rocrate.model import ContextEntity
from rocrate.rocrate import ROCrate

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.files.stored import verify_sum
from ffkv.base.lookup import exists, find, is_dir, is_file, read_bytes
from ffkv.base.process.progress import progress
from ffkv.base.settings import EMBEDDED
from ffkv.base.steps import EVERY_GROUP
from ffkv.branches.branch import Branch, parts_of, paths
from ffkv.branches.registry import BRANCHES
from ffkv.run.export.job import public_name
from ffkv.run.report.overview import corpus_name
from ffkv.run.results.expected import expected_files
from ffkv.run.results.run import Run
from ffkv.run.results.run_files import SPLITS, read_jobs
from ffkv.workflow import ROOT

TERMS = "https://w3id.org/ro/terms/workflow-run#"
PROFILES = [
    *(f"https://w3id.org/ro/wfrun/{name}/0.5" for name in ("process", "workflow", "provenance")),
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0",
]
WORKFLOW_PROFILE = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
LARGE = (".h5", ".safetensors")
CHECKPOINT, TEXT = "#checkpoint", "#corpus"  # they are no files of the run
MADE_HERE = "checkpoint"  # the folder of one that the run trained, or unpacked
# What the rules of the core read and write, below the folder of a run.
CORE: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "write_settings": ([], ["settings.json"]),
    "train": ([TEXT], [MADE_HERE]),
    "unpack": ([CHECKPOINT], [MADE_HERE]),
    "model": ([CHECKPOINT, MADE_HERE], ["model", "values.h5"]),
    "corpus": ([TEXT, "model"], ["corpus/{split}.h5"]),
    "triggers": (["model", "corpus/train.h5"], []),  # shards are deleted when they are merged
    "merge_triggers": ([], ["triggers.h5"]),
    "sampled_prefixes": (["model", "corpus/validation.h5"], ["sampled_prefixes/{shard}.h5"]),
    "merge_sampled_prefixes": (["sampled_prefixes/{shard}.h5", "model"], ["sampled_prefixes.h5"]),
}


class Crate(ROCrate):
    """A crate while it is made.

    Attributes:
        of: the entities of each file of the run, or of each folder that is written as one, by its path below the run's folder.
        left_out: number of files that are named with their sums, and are not in it.
    """

    def __init__(self, small: bool):
        super().__init__(version="1.1")  # the version that the profiles rest on
        self.metadata.extra_contexts.append(TERMS.replace("#", "/context"))
        self.small, self.left_out = small, 0
        self.of: dict[str, list[Any]] = {}

    def name_entity(self, identifier: str, kind: str, **about: Any) -> Any:
        """Adds what is no file."""
        return self.add(ContextEntity(self, identifier, properties={"@type": kind, **about}))

    def add_files(self, path: Path, place: str) -> list[Any]:
        """Adds a file, or those of a folder, at a place in the crate. Raises UserError if one is damaged."""
        if not is_dir(path):
            return [self._add_one(path, place)]
        inside = [each for each in find(path, "**/*") if is_file(each) and not each.name.startswith(".")]
        return [self._add_one(each, f"{place}/{each.relative_to(path).as_posix()}") for each in inside]

    def _add_one(self, path: Path, place: str) -> Any:
        verify_sum(path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        about = {"name": path.name, "sha256": digest, "contentSize": str(path.stat().st_size)}
        text = "application/octet-stream" if path.suffix in (*LARGE, ".parquet") else "text/plain"
        about["encodingFormat"] = mimetypes.guess_type(path.name)[0] or text
        if not (self.small and path.suffix in LARGE):
            return self.add_file(path, place, properties=about)
        self.left_out += 1
        return self.name_entity(
            f"#{place}", "MediaObject", description="It is not in this crate: it is large.", **about
        )


def write_crate(
    run: Run, output: Path, license: str, report: Path | None = None, citation: Path | None = None, small: bool = False
) -> int:
    """Writes the crate of a finished run as a zip file. The folder of the run is not changed.

    Args:
        run: the run. Every file of it is compared with its checksum.
        output: the zip file.
        license: the licence of the results, which every crate must have: a name of SPDX such as CC-BY-4.0, or an address.
        report: the folder of its report; None without.
        citation: a CITATION.cff. Its authors are the agents of the run; None if nobody is named.
        small: leave out HDF5 files and weights. The crate names them with their sums.
    Returns:
        The number of files that are left out.
    Raises:
        UserError: the licence is none; the run is not finished, or a file of it is damaged; CITATION.cff is none; the file cannot be written.
    """
    if not re.fullmatch(r"https?://\S+|[\w.+-]+", license):
        raise UserError(f"{license!r} is no licence. Name one of SPDX, such as CC-BY-4.0, or give its address.")
    if is_dir(output):
        raise UserError(f"{output} is a folder. Name the zip file, such as {output / run.name}.crate.zip.")
    authors = [*_authors(citation)] if citation else []
    # Without what an earlier ffkv did not write.
    without = [name for name, columns in run.files.unmeasured.items() if not columns]
    expected = [run.folder / name for name in expected_files(run.settings) if name not in without]
    if missing := [path for path in expected if not exists(path)]:
        raise UserError(
            f"{run.folder} is not finished: {missing[0]} does not exist. Run `snakemake` again, then write the crate."
        )
    crate, files = Crate(small), [*expected, *find(run.folder / "benchmarks", "**/*.tsv")]
    crate.license = license if license.startswith("http") else f"https://spdx.org/licenses/{license}"
    crate.name = f"ffkv: {public_name(run)} read on {corpus_name(run)}, run {run.name}"
    crate.description = (
        "The feed-forward layers of a language model, read as key-value memories (Geva et al. 2021). settings.json has all"
        " settings. The times of jobs are those of their benchmark files."
    )
    with progress(len(files), "files", "crate") as bar:
        for path in files:
            name = path.relative_to(run.folder).as_posix()
            crate.of[name] = crate.add_files(path, f"results/{run.name}/{name}")
            bar.update()
    shown = crate.add_files(report, f"reports/{run.name}") if report else []
    made = [entity for name, found in crate.of.items() for entity in found if name != "settings.json"]
    _name_inputs(crate, run)
    workflow = _add_workflow(crate, run)
    jobs = _add_jobs(crate, run, workflow)
    times = {}
    if jobs:
        times = {"startTime": min(job["startTime"] for job in jobs), "endTime": max(job["endTime"] for job in jobs)}
    inputs = [entity for name in (CHECKPOINT, TEXT, "settings.json") for entity in crate.of.get(name, [])]
    main = crate.add_action(workflow, "#run", inputs, [*shown, *made], {"name": f"The run {run.name}", **times})
    if agents := [crate.name_entity(who, kind, name=name) for who, kind, name in authors]:
        main["agent"] = _one_or_all(agents)
    _say_who_started(crate, main, jobs)
    crate.root_dataset["mentions"] = [main, *jobs]
    crate.root_dataset["conformsTo"] = [_profile(crate, address) for address in PROFILES]
    with atomic(output, summed=False) as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library warns of what it writes by streams
        crate.write_zip(temporary)
    return crate.left_out


def _one_or_all(entities: Sequence[Any]) -> Any:
    """Returns what a property holds: its only value is no list, says RO-Crate."""
    return entities[0] if len(entities) == 1 else [*entities]


def _profile(crate: Crate, address: str) -> Any:
    name, version = address.rsplit("/", 2)[1:]
    return crate.name_entity(address, "CreativeWork", name=name, version=version.partition("-")[0])


def _name_inputs(crate: Crate, run: Run) -> None:
    """Names the checkpoint, but for one that the run trained, and the text. They are not in the crate."""
    anatomy, corpora = run.anatomy, run.files.corpora
    model = {"name": public_name(run), "version": anatomy.commit or anatomy.model_hash}
    model["description"] = (
        f"{anatomy.architecture}, {anatomy.parameters:,} parameters, hash of the weights {anatomy.model_hash}"
    )
    if anatomy.commit:
        model["url"] = f"https://huggingface.co/{anatomy.checkpoint}/tree/{anatomy.commit}"
    hashes = ", ".join(f"{split} {about['corpus_hash']}" for split, about in corpora.items())
    text = {"name": corpus_name(run), "description": f"Hashes of its sentences: {hashes}"}
    if source := corpora["train"]["source"]:
        text |= {"url": f"https://huggingface.co/datasets/{run.settings.corpus.dataset}", "version": source}
    named = {TEXT: text} if run.settings.model.checkpoint == EMBEDDED else {CHECKPOINT: model, TEXT: text}
    for name, about in named.items():
        crate.of[name] = [crate.name_entity(name, "CreativeWork", **about)]


def _add_workflow(crate: Crate, run: Run) -> Any:
    """Adds the rules of the ffkv that writes the crate, and names the software that made the run."""
    versions = run.anatomy.versions
    about = {
        "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
        "name": "ffkv",
        "version": versions["ffkv"],
        "description": f"The text is that of ffkv {ffkv.__version__}, which wrote this crate.",
        "license": "https://spdx.org/licenses/MIT",
        "encodingFormat": "text/plain",
        "conformsTo": _profile(crate, WORKFLOW_PROFILE),
    }
    file = ROOT / "workflow/Snakefile"
    workflow = crate.add_workflow(file, "workflow/Snakefile", main=True, lang="snakemake", properties=about)
    crate.add_files(file.parent / "rules", "workflow/rules")
    workflow["softwareRequirements"] = [
        crate.name_entity(f"#{name}", "SoftwareApplication", name=name, softwareVersion=version)
        for name, version in sorted(versions.items())
    ]
    return workflow


def _authors(citation: Path) -> Iterator[tuple[str, str, str]]:
    """Yields identifier, kind and name of each author in a CITATION.cff. Raises UserError if it has none."""
    try:
        for number, author in enumerate(yaml.safe_load(read_bytes(citation))["authors"]):
            name = author.get("name") or f"{author.get('given-names', '')} {author['family-names']}".strip()
            yield (
                author.get("orcid") or f"#author-{number}",
                "Organization" if "name" in author else "Person",
                str(name),
            )
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise UserError(
            f"{citation} names no authors as the Citation File Format does. Mend it, or name another one by --citation."
        ) from error


def _add_jobs(crate: Crate, run: Run, workflow: Any) -> list[Any]:
    """Adds an action per job that left its time, with what it read, wrote and took, and the step of its rule."""
    steps, actions = dict[str, Any](), []
    for job in read_jobs(run.folder, run.settings).sort_values("ended", kind="stable").itertuples():
        branch = next((each for each in BRANCHES.values() if job.rule in each.rules), None)
        if job.rule not in steps:
            command = f"ffkv {job.rule.replace('_', ' ', bool(branch)).replace('_', '-')}"
            tool = crate.name_entity(
                f"#{command.replace(' ', '-')}", "SoftwareApplication", name=command, description=f"The rule {job.rule}"
            )
            about = {"name": job.rule, "position": str(len(steps)), "workExample": tool}
            steps[job.rule] = crate.name_entity(f"#step-{job.rule}", "HowToStep", **about)
        name = f"{job.rule}-{job.part}".removesuffix("-")
        read, wrote = (
            [entity for path in files for entity in crate.of.get(path, [])]
            for files in _files_of(run, branch, job.rule, job.part)
        )
        began, ended = (
            datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds") for at in (job.ended - job.seconds, job.ended)
        )
        about = {"name": name, "startTime": began, "endTime": ended}
        action = crate.add_action(
            steps[job.rule]["workExample"], f"#job-{name}", _one_or_all(read), _one_or_all(wrote), about
        )
        action["resourceUsage"] = [
            crate.name_entity(
                f"#{name}-{what}",
                "PropertyValue",
                propertyID=TERMS + what,
                name=what,
                value=str(value),
                unitCode=f"http://qudt.org/vocab/unit/{unit}",
            )
            for what, value, unit in (("elapsedSeconds", job.seconds, "SEC"), ("peakMemory", job.memory, "MebiBYTE"))
            if value == value  # Snakemake measures no memory of a short job
        ]
        actions.append(action)
    workflow["step"] = [*steps.values()]
    workflow["hasPart"] = [step["workExample"] for step in steps.values()]
    return actions


def _files_of(run: Run, branch: Branch | None, rule: str, part: str) -> tuple[list[str], list[str]]:
    """Returns what a job reads and writes, as paths below the folder of the run; nothing of rules that write no file of it."""
    every = {**parts_of(run.settings), "split": SPLITS}
    own = dict(every)  # with the part of the job alone
    for each in part.split("/") if part else ():
        named = ("group", "shard") if each.isdigit() else ("behaviour", "split")
        own |= {name: [each] for name in named}
    if branch:
        step = branch.rules[rule]
        reads = [(branch.path(name.rstrip(EVERY_GROUP)), name.endswith(EVERY_GROUP)) for name in step.reads]
        writes: Sequence[str] = [each.path for each in step.writes]
    else:
        of_core, writes = CORE.get(rule, ([], []))
        reads = [(path, False) for path in of_core]
    read = [path for each, of_all in reads for path in paths(each, every if of_all else own)]
    return read, [path for each in writes for path in paths(each, own)]


def _say_who_started(crate: Crate, main: Any, jobs: Sequence[Any]) -> None:
    """Says that Snakemake started the jobs of the run, and which job was which step."""
    steps = {step["workExample"]: step for step in crate.mainEntity["step"]}
    controls = [
        crate.add_action(
            steps[job["instrument"]],
            f"{job.id}-control",
            job,
            properties={"@type": "ControlAction", "name": f"start {job['name']}"},
        )
        for job in jobs
    ]
    engine = crate.name_entity(
        "#Snakemake", "SoftwareApplication", name="Snakemake", url="https://snakemake.readthedocs.io"
    )
    about = {"@type": "OrganizeAction", "name": "Snakemake"}
    crate.add_action(engine, "#snakemake", _one_or_all(controls), main, about)
