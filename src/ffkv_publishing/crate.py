"""A finished run as a Workflow Run RO-Crate: one zip file, which WorkflowHub, Zenodo and other archives read.

It follows the profile Provenance Run Crate 0.5 (https://w3id.org/ro/wfrun/provenance/0.5): the workflow and its steps, what each job
read, wrote and took, and every file with its SHA-256. The library `rocrate` writes it.
"""

import hashlib
import mimetypes
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rocrate.model import ContextEntity, Person
from rocrate.rocrate import ROCrate

import ffkv
from ffkv.base.doors import PREFIX
from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.files.stored import verify_sum
from ffkv.base.lookup import exists, find, is_dir, is_file, read_bytes
from ffkv.base.process.progress import progress
from ffkv.base.steps import EVERY_GROUP
from ffkv.branches.branch import Branch, parts_of, paths
from ffkv.branches.registry import BRANCHES
from ffkv.run.export.job import public_name
from ffkv.run.report.overview import corpus_name
from ffkv.run.results.expected import expected_files
from ffkv.run.results.run import Run
from ffkv.workflow import ROOT

UNITS = "http://qudt.org/vocab/unit/"
TERMS = "https://w3id.org/ro/terms/workflow-run#"
PROFILES = {
    **{
        f"https://w3id.org/ro/wfrun/{name}/0.5": f"{name.title()} Run Crate"
        for name in ("process", "workflow", "provenance")
    },
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
WORKFLOW_PROFILE = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
CHECKPOINT, TEXT = "#checkpoint", "#corpus"
# What the rules of the core read and write, below the folder of a run. {part}: a split or a shard.
CORE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "write_settings": ((), ("settings.json",)),
    "train": ((TEXT,), ("checkpoint",)),
    "unpack": ((CHECKPOINT,), ("checkpoint",)),
    "model": ((CHECKPOINT,), ("model", "values.h5")),
    "corpus": ((TEXT, "model"), ("corpus/{part}.h5",)),
    "triggers": (("model", "corpus/train.h5"), ()),  # shards are deleted when they are merged
    "merge_triggers": ((), ("triggers.h5",)),
    "sampled_prefixes": (("model", "corpus/validation.h5"), ("sampled_prefixes/{part}.h5",)),
    "merge_sampled_prefixes": (("sampled_prefixes/0.h5",), ("sampled_prefixes.h5",)),
}
# Formats that `mimetypes` does not know.
ENDINGS = {
    ".h5": "application/x-hdf5",
    ".parquet": "application/vnd.apache.parquet",
    ".safetensors": "application/octet-stream",
}


class Written(NamedTuple):
    """What a crate holds."""

    files: int
    left_out: int  # files that are named with their sums, and are not in it
    jobs: int


def write_crate(
    run: Run, output: Path, license: str, report: Path | None = None, citation: Path | None = None, small: bool = False
) -> Written:
    """Writes the crate of a finished run as a zip file. The folder of the run is not changed.

    Args:
        run: the run. Every file of it is compared with its checksum.
        output: the zip file.
        license: the licence of the results, which every crate must have: a name of SPDX such as CC-BY-4.0, or an address.
        report: the folder of its report; None without.
        citation: a CITATION.cff. Its authors are the agents of the run; None if nobody is named.
        small: leave out HDF5 files and the weights of a checkpoint that the run made. The crate names them with their sums.
    Raises:
        UserError: the run is not finished, or a file of it is damaged; CITATION.cff is none; the file cannot be written.
    """
    crate = ROCrate(version="1.1")  # the version that the profiles rest on
    crate.metadata.extra_contexts.append(TERMS.replace("#", "/context"))
    files = _Files(crate, run, small)
    files.add_all()
    shown = files.add(report, f"reports/{run.name}") if report else []
    inputs, workflow = _inputs(crate, run), _workflow(crate, run)
    jobs = _jobs(crate, run, workflow, inputs, files)
    times = (
        {"startTime": min(job["startTime"] for job in jobs), "endTime": max(job["endTime"] for job in jobs)}
        if jobs
        else {}
    )
    main = crate.add_action(
        workflow,
        identifier="#run",
        object=[*inputs.values(), *files.of["settings.json"]],
        result=[*shown, *(entity for name, found in files.of.items() for entity in found if name != "settings.json")],
        properties={"name": f"The run {run.name}", **times},
    )
    if agents := _agents(crate, citation):
        main["agent"] = _one_or_all(agents)
    _organize(crate, main, workflow, jobs)
    _describe(crate, run, license)
    crate.root_dataset["mentions"] = [main, *jobs]
    with atomic(output, summed=False) as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library warns of what it writes by streams
        crate.write_zip(temporary)
    return Written(files.count, files.left_out, len(jobs))


def _describe(crate: ROCrate, run: Run, license: str) -> None:
    """Says what the crate as a whole is."""
    name = public_name(run)
    crate.name = f"ffkv: {name} read on {corpus_name(run)}, run {run.name}"
    crate.description = (
        f"The feed-forward layers of {name} read as key-value memories (Geva et al. 2021) by ffkv {run.anatomy.versions['ffkv']}."
        " settings.json has all settings. The times of jobs are those of their benchmark files."
    )
    crate.license = license if license.startswith("http") else f"https://spdx.org/licenses/{license}"
    crate.root_dataset["conformsTo"] = [
        _add(crate, address, "CreativeWork", name=name, version=address.rpartition("/")[2])
        for address, name in PROFILES.items()
    ]


class _Files:
    """The files of a crate as entities, by their paths below the folder of the run."""

    def __init__(self, crate: ROCrate, run: Run, small: bool):
        self._crate, self._run, self._small = crate, run, small
        self.of: dict[str, list[Any]] = {}
        self.count = self.left_out = 0

    def add_all(self) -> None:
        """Adds every file of the run. Raises UserError if one is missing or damaged."""
        run = self._run
        paths = [run.folder / name for name in expected_files(run.settings)]
        if missing := [path for path in paths if not exists(path)]:
            raise UserError(
                f"{run.folder} is not finished: {missing[0]} does not exist. Run `snakemake` again, then write the crate."
            )
        paths += find(run.folder / "benchmarks", "**/*.tsv")
        with progress(len(paths), "files", "crate") as bar:
            for path in paths:
                found = self.add(path, f"results/{run.name}/{path.relative_to(run.folder).as_posix()}")
                self.of[path.relative_to(run.folder).as_posix()] = found
                bar.update()

    def add(self, path: Path, place: str) -> list[Any]:
        """Adds a file, or those of a folder, at a place in the crate. Raises UserError if one is damaged."""
        if not is_dir(path):
            return [self._entity(path, place)]
        inside = [each for each in find(path, "**/*") if is_file(each) and not each.name.startswith(".")]
        return [self._entity(each, f"{place}/{each.relative_to(path).as_posix()}") for each in inside]

    def _entity(self, path: Path, name: str) -> Any:
        verify_sum(path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        about = {"name": path.name, "sha256": digest, "contentSize": str(path.stat().st_size)}
        about["encodingFormat"] = ENDINGS.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain"
        if self._small and path.suffix in (".h5", ".safetensors"):
            self.left_out += 1
            about |= {"@type": "MediaObject", "description": f"{name}: not in this crate, because of its size."}
            return self._crate.add(ContextEntity(self._crate, f"#{name}", properties=about))
        self.count += 1
        return self._crate.add_file(path, name, properties=about)


def _inputs(crate: ROCrate, run: Run) -> dict[str, Any]:
    """Adds the checkpoint and the text. They are not in the crate."""
    anatomy, corpus = run.anatomy, run.settings.corpus
    about = {
        CHECKPOINT: {
            "name": public_name(run),
            "description": f"{anatomy.architecture}, {anatomy.parameters:,} parameters. Hash of its weights {anatomy.model_hash}.",
            "version": anatomy.commit or anatomy.model_hash,
        },
        TEXT: {
            "name": corpus_name(run),
            "description": "Hashes of its sentences: "
            + ", ".join(f"{split} {facts['corpus_hash']}" for split, facts in run.files.corpora.items()),
        },
    }
    if anatomy.commit:
        about[CHECKPOINT]["url"] = f"https://huggingface.co/{anatomy.checkpoint}/tree/{anatomy.commit}"
    if anatomy.checkpoint.startswith(PREFIX):
        about[CHECKPOINT]["description"] += " A Python package brings it."
    if source := run.files.corpora["train"]["source"]:
        about[TEXT] |= {"url": f"https://huggingface.co/datasets/{corpus.dataset}", "version": source}
    return {name: _add(crate, name, "CreativeWork", **facts) for name, facts in about.items()}


def _add(crate: ROCrate, identifier: str, kind: str, **about: Any) -> Any:
    return crate.add(ContextEntity(crate, identifier, properties={"@type": kind, **about}))


def _tool(crate: ROCrate, name: str, **about: str) -> Any:
    return _add(crate, f"#{name.replace(' ', '-')}", "SoftwareApplication", name=name, **about)


def _one_or_all(entities: Sequence[Any]) -> Any:
    """Returns what a property holds: its only value is no list, says RO-Crate."""
    return entities[0] if len(entities) == 1 else [*entities]


def _workflow(crate: ROCrate, run: Run) -> Any:
    """Adds the rules of the ffkv that writes the crate, and the software that made the run."""
    own = {
        "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
        "name": "ffkv",
        "version": run.anatomy.versions["ffkv"],
        "license": "https://spdx.org/licenses/MIT",
        "encodingFormat": "text/plain",
        "conformsTo": _add(
            crate, WORKFLOW_PROFILE, "CreativeWork", name="Bioschemas ComputationalWorkflow", version="1.0"
        ),
    }
    workflow = crate.add_workflow(
        ROOT / "workflow/Snakefile",
        "workflow/Snakefile",
        main=True,
        lang="snakemake",
        properties=own | {"description": f"Its text is that of ffkv {ffkv.__version__}, which wrote this crate."},
    )
    for path in find(ROOT / "workflow/rules", "*.smk"):
        crate.add_file(
            path, f"workflow/rules/{path.name}", properties={"name": path.name, "encodingFormat": "text/plain"}
        )
    workflow["softwareRequirements"] = [
        _tool(crate, name, softwareVersion=version) for name, version in sorted(run.anatomy.versions.items())
    ]
    return workflow


def _agents(crate: ROCrate, citation: Path | None) -> list[Any]:
    """Adds the authors that a CITATION.cff names."""
    if not citation:
        return []
    try:
        authors = yaml.safe_load(read_bytes(citation))["authors"]
        found = []
        for number, author in enumerate(authors):
            name = author.get("name") or f"{author.get('given-names', '')} {author['family-names']}".strip()
            about = {"@type": "Organization" if "name" in author else "Person", "name": str(name)}
            found.append(crate.add(Person(crate, author.get("orcid") or f"#author-{number}", properties=about)))
        return found
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise UserError(
            f"{citation} names no authors as the Citation File Format does. Mend it, or pass --no-citation."
        ) from error


def _jobs(crate: ROCrate, run: Run, workflow: Any, inputs: dict[str, Any], files: _Files) -> list[Any]:
    """Adds an action per job that left its time, with what it read, wrote and took, and the step of its rule."""
    steps, actions = dict[str, Any](), []
    for job in run.files.jobs().sort_values("ended", kind="stable").itertuples():
        if job.rule not in steps:
            tool = _tool(crate, _command(job.rule), description=f"The command of the rule {job.rule}.")
            about = {"name": job.rule, "position": str(len(steps)), "workExample": tool}
            steps[job.rule] = _add(crate, f"#step-{job.rule}", "HowToStep", **about)
        name = f"{job.rule}-{job.part}".removesuffix("-")
        read, wrote = _files_of(run, job.rule, job.part)
        action = crate.add_action(
            steps[job.rule]["workExample"],
            identifier=f"#job-{name}",
            object=_one_or_all([each for path in read for each in files.of.get(path, [inputs.get(path)]) if each]),
            result=_one_or_all([each for path in wrote for each in files.of.get(path, [])]),
            properties={"name": name, "startTime": _time(job.ended - job.seconds), "endTime": _time(job.ended)},
        )
        action["resourceUsage"] = [
            _add(
                crate,
                f"#{name}-{what}",
                "PropertyValue",
                propertyID=TERMS + what,
                name=what,
                value=str(value),
                unitCode=unit,
            )
            for what, value, unit in (
                ("elapsedSeconds", job.seconds, UNITS + "SEC"),
                ("peakMemory", job.memory, UNITS + "MebiBYTE"),
            )
            if value == value  # Snakemake measures no memory of a short job
        ]
        actions.append(action)
    workflow["step"] = [*steps.values()]
    workflow["hasPart"] = [step["workExample"] for step in steps.values()]
    return actions


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _branch_of(rule: str) -> Branch | None:
    return next((branch for branch in BRANCHES.values() if rule in branch.rules), None)


def _command(rule: str) -> str:
    """Returns the command that a rule calls."""
    branch = _branch_of(rule)
    return f"ffkv {rule.replace('_', '-')}" if not branch else f"ffkv {rule.replace('_', ' ', 1).replace('_', '-')}"


def _files_of(run: Run, rule: str, part: str) -> tuple[list[str], list[str]]:
    """Returns what a job reads and writes, as paths below the folder of the run; nothing of rules that write no file of it."""
    if not (branch := _branch_of(rule)):
        of_core = CORE.get(rule, ((), ()))
        return [path.format(part=part) for path in of_core[0]], [path.format(part=part) for path in of_core[1]]
    own = dict(every := parts_of(run.settings))
    for each in part.split("/") if part else ():
        own |= {"group": [each], "shard": [each]} if each.isdigit() else {"behaviour": [each]}
    step = branch.rules[rule]
    read = [
        path
        for name in step.reads
        for path in paths(branch.path(name.rstrip(EVERY_GROUP)), every if name.endswith(EVERY_GROUP) else own)
    ]
    return read, [path for each in step.writes for path in paths(each.path, own)]


def _organize(crate: ROCrate, main: Any, workflow: Any, jobs: list[Any]) -> None:
    """Says that Snakemake started the jobs of the run: which job was which step."""
    steps = {step["workExample"]: step for step in workflow["step"]}
    controls = [
        crate.add_action(
            steps[job["instrument"]],
            f"{job.id}-control",
            job,
            properties={"@type": "ControlAction", "name": f"start {job['name']}"},
        )
        for job in jobs
    ]
    crate.add_action(
        _tool(crate, "Snakemake", url="https://snakemake.readthedocs.io"),
        "#snakemake",
        _one_or_all(controls),
        main,
        {"@type": "OrganizeAction", "name": "Snakemake"},
    )
