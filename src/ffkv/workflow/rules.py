"""What the rules take from the settings: options of commands, input files, and what a change of repeats a rule."""

import hashlib
import json
import re
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from snakemake.exceptions import WorkflowError
from snakemake.io import ancient, contains_wildcard, local

from ffkv.base.doors import entries
from ffkv.base.errors import UserError
from ffkv.base.lookup import is_file
from ffkv.base.options import command_line
from ffkv.branches.branch import NAMED, parts_of, paths
from ffkv.branches.registry import BRANCHES
from ffkv.branches.settings import AUTO, EMBEDDED, NONE, Corpus, Settings
from ffkv.corpus.sources import source_files
from ffkv.workflow import ROOT, inputs
from ffkv.workflow.jobs import STEPS
from ffkv.workflow.runs import controls_of, resolve, resolve_comparisons

# Changes with the defaults of another ffkv: settings that a run does not name.
DEFAULTS = hashlib.sha256(Settings().model_dump_json().encode()).hexdigest()[:8]

InputFunction = Callable[..., Any]  # of a job's wildcards, and of its input
Wildcards = Any  # Snakemake's class has the wildcards of a rule as attributes


class ByRun(dict[str, Settings]):
    """Run to its complete settings: the defaults, the shared settings, the run's own."""

    def __missing__(self, run: str) -> dict[str, Any]:
        """Whoever names a file of another run has most likely forgotten the settings file."""
        raise WorkflowError(
            f"No run is called {run}. The settings name: {', '.join(self)}. Name the settings file of {run} with --configfile."
        )


class Runs:
    """The runs and the comparisons of a settings file, as the rules need them.

    Attributes:
        settings: run to its complete settings. The controls of runs are among them.
        controls: the control of a run that the settings file does not name, to this run. It copies the run's corpus, and
            reads of the hub the same commits.
        named: the runs that the settings file names.
        comparisons: comparison to its settings.
        hub: run to the options that name its repositories on the hub, by kind.
    """

    def __init__(self, configuration: dict[str, Any]):
        """Checks the settings.

        Raises:
            UserError: an unknown key or an impossible value, and the message names all; or the package of a text is missing.
        """
        self.settings = ByRun(resolve(configuration))
        for own in self.settings.values():
            inputs.check_packages(own)
        compared = resolve_comparisons(configuration)
        self.comparisons = {name: comparison.model_dump() for name, comparison in compared.items()}
        self.controls = controls_of(self.settings)
        self.named = [run for run in self.settings if run not in self.controls]
        self.hub = {run: inputs.hub_repositories(self.settings[run]) for run in self.named}

    # Parameters

    def setting(self, name: str) -> InputFunction:
        """Returns one setting of the job's run, such as "model/device"."""
        return lambda wildcards: attrgetter(name.replace("/", "."))(self.settings[wildcards.run])

    def options(self, rule: str) -> InputFunction:
        """Returns the settings of a rule's step as options of its command. A change of one of them repeats the rule."""

        def options(wildcards: Wildcards) -> str:
            own = self.settings[wildcards.run].model_dump()
            if rule == "train" and own["corpus"]["dataset"] != EMBEDDED:  # which a model is not trained on
                own["corpus"] = Corpus().model_dump()
            for part, section in NAMED.items():
                if hasattr(wildcards, part):
                    own[section] = own[section][getattr(wildcards, part)]
            return command_line(own, *STEPS[rule].tracked)

        return options

    def changed(self, wildcards: Wildcards) -> str:
        """Returns the settings of the job's run that are not the defaults, as JSON: a reason that a person can read."""
        return json.dumps(self.settings[wildcards.run].model_dump(exclude_defaults=True), sort_keys=True)

    def memory_limits(self) -> InputFunction:
        """Returns `--max-memory`, made from an input, which Snakemake does not track: a change repeats no rule."""
        return lambda wildcards, input: command_line(self.settings[wildcards.run].model_dump(), "model/max_memory")

    def comparison_options(self, wildcards: Wildcards) -> str:
        """Returns as options: the settings of a comparison without its runs; the first run's seed; whether code of a run is trusted."""
        comparison = {**self.comparisons[wildcards.comparison]}
        runs = [self.settings[run] for run in comparison.pop("runs")]
        trusted = any(own.model.trust_remote_code for own in runs)
        given = {"comparison": comparison, "seed": runs[0].seed, "model": {"trust_remote_code": trusted}}
        return command_line(given, "comparison", "seed", "model/trust_remote_code")

    # Files of other rules

    def every(self, path: str) -> InputFunction:
        """Returns the files of all shards, layer groups, behaviours and concepts of the job's run, as far as its settings ask for them."""

        def files(wildcards: Wildcards) -> list[str]:
            settings = self.settings[wildcards.run]
            own = {name: [value] for name, value in wildcards.items()}
            absent = {path for branch in BRANCHES.values() for path in branch.files(settings, absent=True)}
            found = paths(path, {**parts_of(settings), **own})
            return [file for file in found if file.removeprefix(f"results/{wildcards.run}/") not in absent]

        return files

    def commit(self, *kinds: str) -> InputFunction:
        """Returns the files with the commits of what the job's run reads of the hub: the model, the data set."""

        def files(wildcards: Wildcards) -> list[str]:
            run = self.controls.get(wildcards.run, wildcards.run)
            return [f"results/{run}/commits/{kind}.json" for kind in kinds if kind in self.hub[run]]

        return files

    def branches(self, wildcards: Wildcards) -> list[str]:
        """Returns all that the branches make of the job's run."""
        return self._made(wildcards.run)

    def _made(self, run: str) -> list[str]:
        settings = self.settings[run]
        return [f"results/{run}/{path}" for branch in BRANCHES.values() for path in branch.files(settings)]

    def that(self, does: str) -> str:
        """A regular expression for the names of the runs of which the workflow must "copy" the corpus, as of controls, "train" the model,
        or "unpack" a GGUF file; without any, one that fits nothing."""
        unpacked = [run for run, own in self.settings.items() if own.model.is_unpacked]
        runs = {"copy": self.controls, "train": self._trained, "unpack": unpacked}[does]
        return "|".join(map(re.escape, runs)) or "(?!)"

    def copied_corpus(self, wildcards: Wildcards) -> str:
        """Returns the corpus that a control copies: that of its run."""
        return f"results/{self.controls[wildcards.run]}/corpus/{wildcards.split}.h5"

    def control(self, wildcards: Wildcards) -> list[str]:
        """Returns what the report reads of the run that the job's run is compared with."""
        control = self.settings[wildcards.run].report.control
        if control in (AUTO, NONE):
            return []
        return [*(f"results/{control}/{name}" for name in ("settings.json", "model")), *self._made(control)]

    def reports_of_comparison(self, wildcards: Wildcards) -> list[str]:
        """Returns the reports of the runs that are compared: all that is read of the runs is there then."""
        return [f"reports/{run}/index.html" for run in self.comparisons[wildcards.comparison]["runs"]]

    # The checkpoint

    def trained_checkpoint(self, wildcards: Wildcards) -> list[str]:
        """Returns the checkpoint that the workflow trains, for this run or another one, if the job's run asks for it.

        A run can also name a checkpoint of a training step, a folder below it.
        """
        named = self.settings[wildcards.run].model.checkpoint
        return [f"results/{wildcards.run}/checkpoint"] if named == EMBEDDED else self._trained_for(named)

    def tuned_checkpoint(self, wildcards: Wildcards) -> list[str]:
        """Returns the checkpoint of another run that the training of the job's run goes on from, if there is one."""
        return self._trained_for(self.settings[wildcards.run].embedded.tuned_from)

    def _trained_for(self, named: str) -> list[str]:
        """Returns the checkpoint that the workflow trains and that a path names, or a folder below it."""
        folders = [f"results/{run}/checkpoint" for run in self._trained]
        return [folder for folder in folders if Path(folder) in (Path(named), *Path(named).parents)]

    @property
    def _trained(self) -> list[str]:
        return [run for run, own in self.settings.items() if own.model.checkpoint == EMBEDDED]

    def unpacked_checkpoint(self, wildcards: Wildcards) -> list[str]:
        """Returns the checkpoint that the workflow unpacks from the GGUF file of the job's run, if it has one."""
        unpacked = self.settings[wildcards.run].model.is_unpacked
        return [f"results/{wildcards.run}/checkpoint"] if unpacked else []

    def place_of_checkpoint(self, wildcards: Wildcards, input: Any) -> str:
        """Returns where the job's checkpoint is: a trained one below the `prefix:` that another workflow may give."""
        named = self.settings[wildcards.run].model.checkpoint
        if not input.trained or named == EMBEDDED:
            return str(input.trained or named)
        (folder,) = self.trained_checkpoint(wildcards)
        return str(Path(str(input.trained)) / Path(named).relative_to(folder))

    # Local files of the user. They stay where they are if another workflow gives this one a `prefix:`. What counts is not their
    # time but their content, see `contents`.

    def found(self, what: str) -> Callable[[Wildcards], list[str]]:
        """Returns the local files of the job's run; none if they cannot be read: the step that reads them says why.

        Args:
            what: "checkpoint", unless the workflow trains it; "dictionary"; "corpus"; "tuning", what a model is trained further on, and
                from; "annotations", what people and machines said; or a branch: those that its section of settings names, or the part of the job.
        """

        def of_branch(settings: Settings, job: Wildcards) -> list[str]:
            branch = BRANCHES[what]
            return [file for its in branch.sections(settings, dict(job.items())) for file in branch.find_files(its)]

        find: Callable[[Settings, Wildcards], list[str]] = {
            "checkpoint": lambda settings, job: (
                [] if self.trained_checkpoint(job) else inputs.checkpoint_files(settings)
            ),
            "dictionary": lambda settings, job: inputs.dictionary_files(settings),
            "corpus": lambda settings, job: source_files(settings.corpus, job.split),
            "tuning": lambda settings, job: inputs.tuning_files(settings, bool(self.tuned_checkpoint(job))),
            "annotations": lambda settings, job: inputs.annotation_files(settings, job.run),
        }.get(what, of_branch)

        def files(wildcards: Wildcards) -> list[str]:
            try:
                return find(self.settings[wildcards.run], wildcards)
            except (OSError, ValueError, UserError):
                return []

        return files

    def files(self, what: str) -> InputFunction:
        """Returns the files of `found` as input of a rule.

        Snakemake reads braces as wildcards, and stores only names that are UTF-8.
        """
        own = self.found(what)
        return lambda wildcards: local(
            ancient([f for f in own(wildcards) if f.isprintable() and not contains_wildcard(f)])
        )

    def content(self, what: str) -> InputFunction:
        """Returns a hash over the files of `found` and code of others that reads them. A change repeats the rule."""
        return lambda wildcards: (
            inputs.contents(self.found(what)(wildcards)) + inputs.code_beside(what, self.settings[wildcards.run])
        )


def code(rule: str) -> str:
    """Returns the version of the modules that a rule's numbers depend on. A change of one of them repeats the rule."""
    return f"code {STEPS[rule].code}"


def tables(rule: str) -> list[str]:
    """Returns what the step of a rule writes."""
    return [f"results/{{run}}/{each.path}" for each in STEPS[rule].writes]


def repeated(name: str) -> InputFunction:
    """Returns an option that is repeated for each file of the input of that name."""
    return lambda wildcards, input: [f"--{name.replace('_', '-')}={path}" for path in input[name]]


def rules_file(name: str) -> str:
    """Returns the file with the rules of a branch, or of a package behind the door `ffkv.rules`.

    These of ffkv are in workflow/rules. Those of others are `rules.smk`, beside the module that their entry point names.
    """
    if is_file(own := ROOT / f"workflow/rules/{name}.smk"):
        return str(own)
    module = next(entries(door)[name].module for door in ("branches", "rules") if name in entries(door))
    return str(Path(str(import_module(module).__file__)).with_name("rules.smk"))
