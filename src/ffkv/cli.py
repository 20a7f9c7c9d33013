"""The `ffkv` command. A subcommand is imported only when it is called, so that the help is quick."""

import importlib
import io
import sys

import click

from ffkv import __version__
from ffkv.base.system.signals import end_in_good_order
from ffkv.base.terminal import say
from ffkv.branches.registry import BRANCHES

# Heading in the help: its subcommands, each with its function, and its line in the help.
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Prepare a run": {
        "init": ("ffkv.workflow.start:init", "Prepare a folder for runs: Snakefile, config.yaml, profiles."),
        "inspect": ("ffkv.model.commands:inspect", "Show how a checkpoint's feed-forward layers are built."),
        "models": ("ffkv.model.architectures.commands:models", "Show which model types can be read."),
        "plan": ("ffkv.plan.commands:plan", "Estimate the disk space, memory and time of runs before they start."),
    },
    "Keep runs in order": {
        "recover": (
            "ffkv.base.process.commands:recover",
            "After a hard kill of snakemake: end its running steps, and unlock the folder.",
        ),
        "check": (
            "ffkv.run.results.commands:check",
            "Read every file of a run and name those that are damaged, unfinished or missing.",
        ),
    },
    "Ask a finished run": {
        "explore": ("ffkv.apps.explorer.commands:explore", "Open finished runs in a browser."),
        "trace": (
            "ffkv.run.trace.commands:trace",
            "Run one prompt through the model of a run, with memories switched off.",
        ),
        "graph": (
            "ffkv.run.graph.commands:graph",
            "Show the few memories that make a prediction, and what they do to each other.",
        ),
        "behaviour": (
            "ffkv.run.trace.commands:behaviour",
            "Ask which memories of a run cause what its model does on a set of prompts.",
        ),
        "generate": (
            "ffkv.run.trace.commands:generate",
            "Let the model of a run write text, untouched and with memories switched off.",
        ),
        "collect": ("ffkv.run.results.commands:collect", "Put memories into a named list of a run, or take them out."),
        "collections": ("ffkv.run.results.commands:collections", "Print the named lists and notes of a run as CSV."),
        "annotate": ("ffkv.apps.machine.commands:annotate", "Annotation: what people and machines say about keys."),
    },
    "Share a finished run": {
        "export": ("ffkv.apps.export.commands:export", "Write memories of a run in the format of another tool."),
        "report": ("ffkv.run.report.commands:report", "Write the HTML report of a run."),
    },
    "Steps, which snakemake starts": {
        "train": ("ffkv.corpus.embedded.commands:train", "Train the embedded model, or train it further."),
        "unpack": ("ffkv.model.commands:unpack", "Unpack a GGUF file once for all later steps."),
        "model": (
            "ffkv.model.commands:model",
            "Prove a checkpoint's feed-forward layers and write its values and head.",
        ),
        "resolve-commit": ("ffkv.base.hub.commands:resolve_commit", "Ask the hub at which commit a branch is."),
        "corpus": ("ffkv.corpus.commands:corpus", "Turn documents into sentences of token ids."),
        "copy-corpus": ("ffkv.corpus.commands:copy_corpus", "Copy a part of a run's corpus for its control."),
        "triggers": (
            "ffkv.activations.commands:triggers",
            "Find the trigger examples of every key in one shard of the corpus.",
        ),
        "merge-triggers": ("ffkv.activations.commands:merge_triggers", "Merge the shards' trigger examples."),
        "sampled-prefixes": (
            "ffkv.activations.commands:sampled_prefixes",
            "Store y, o and m of the sampled prefixes in one shard of the corpus.",
        ),
        "merge-sampled-prefixes": (
            "ffkv.activations.commands:merge_sampled_prefixes",
            "Merge the shards' sampled prefixes.",
        ),
        **{name: ("", branch.about) for name, branch in BRANCHES.items()},  # their commands are made from their steps
        "write-settings": ("ffkv.base.settings.commands:write_settings", "Write the complete settings of a run."),
        "comparison": (
            "ffkv.run.comparison.commands:comparison",
            "Comparison: several finished runs over each other.",
        ),
    },
    "Change ffkv": {
        "settings": (
            "ffkv.base.settings.commands:settings",
            "Check a settings file (--check), or write the settings' JSON schema and reference page.",
        ),
        "formats": ("ffkv.workflow.formats:formats", "Write the tables of datasets in docs/formats.md."),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


class Lazy(click.Group):
    """A group whose subcommands are imported only when they are called."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Returns the names of the subcommands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Imports the subcommand of that name. None if there is none."""
        if name not in COMMANDS:
            return None
        if name in BRANCHES:
            from ffkv.branches.commands import command_group

            return command_group(BRANCHES[name])
        module, attribute = COMMANDS[name][0].split(":")
        return getattr(importlib.import_module(module), attribute)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the subcommands without importing them."""
        width = max(map(len, COMMANDS))
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in commands.items()])


@click.command(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def ffkv() -> None:
    """Reads the feed-forward layers of a causal language model as key-value memories.

    `ffkv init` prepares a folder, in which `snakemake` runs all steps. `ffkv explore` and `ffkv trace` ask a finished run.
    Each step also runs by hand, in the order shown.
    """


ffkv.commands.update(dict.fromkeys(COMMANDS, ffkv))  # click looks for similar names there


def main() -> None:
    """Runs the command. SIGTERM ends it in good order.

    A `UserError` and a wrong option become a message and exit code 2; an exception that nobody foresaw becomes a
    sentence and exit code 70, see `ffkv.base.process.defect`.
    """
    end_in_good_order()
    try:
        sys.exit(ffkv(standalone_mode=False) or 0)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        say(shown.getvalue().rstrip("\n"), error=True, name=False)
        sys.exit(error.exit_code)
    except click.Abort:
        say("stopped.", error=True)
        sys.exit(1)
    except BrokenPipeError:  # whoever reads the output, such as `head`, has enough
        sys.exit(1)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # what libraries in Rust raise where their own code fails is no `Exception`
        from ffkv.base.process.defect import explain

        message, code = explain(error)
        say(message, error=True)
        sys.exit(code)
