"""The `ffkv` command. Each subcommand is one step of the workflow; its code is imported when it is called."""

import importlib
import sys

import click

from ffkv import __version__
from ffkv.errors import UserError
from ffkv.process.signals import end_in_good_order

# Subcommand: where it lives, and its line in the help (so that the help imports nothing).
COMMANDS = {
    "train": ("ffkv.embedded.commands:train", "Train the embedded model on the embedded corpus."),
    "model": ("ffkv.model.commands:model", "Prove a checkpoint's feed-forward layers and write its values and head."),
    "inspect": ("ffkv.model.commands:inspect", "Show how a checkpoint's feed-forward layers are built."),
    "corpus": ("ffkv.corpus.commands:corpus", "Turn documents into sentences of token ids."),
    "triggers": (
        "ffkv.activations.commands:triggers",
        "Find the trigger examples of every key in one shard of the corpus.",
    ),
    "merge-triggers": ("ffkv.activations.commands:merge_triggers", "Merge the shards' trigger examples."),
    "sampled-prefixes": (
        "ffkv.activations.commands:sampled_prefixes",
        "Store y, o and m of one shard of the sampled prefixes.",
    ),
    "merge-sampled-prefixes": (
        "ffkv.activations.commands:merge_sampled_prefixes",
        "Make one sample of the sampled prefixes of all shards.",
    ),
    "keys": ("ffkv.keys.commands:keys", "Keys: patterns, token removal, activity."),
    "values": ("ffkv.values.commands:values", "Values: projections, agreement, rank, top probability."),
    "composition": ("ffkv.composition.commands:composition", "How memories of a layer compose."),
    "refinement": ("ffkv.refinement.commands:refinement", "How predictions are refined over the layers."),
    "report": ("ffkv.report.commands:report", "Write the HTML report of a run."),
    "plan": ("ffkv.plan.commands:plan", "Say what runs will take before they start: disk, memory, time."),
    "check": ("ffkv.results.check:check", "Read every file of a run and say which are damaged or left over."),
    "recover": (
        "ffkv.process.recover:recover",
        "After a hard kill of snakemake: end what it left running, and unlock.",
    ),
    "models": ("ffkv.architectures.commands:models", "Show which model types can be read."),
    "formats": ("ffkv.formats:formats", "Write the tables of datasets in docs/formats.md."),
    "settings": ("ffkv.settings.reference:settings", "Write the settings' JSON schema and reference page."),
}


class Lazy(click.Group):
    """A group whose subcommands are imported only when they are called."""

    def list_commands(self, context: click.Context) -> list[str]:
        """The subcommands, in the order of the workflow."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The subcommand of that name, imported now."""
        if name not in COMMANDS:
            return None
        module, attribute = COMMANDS[name][0].split(":")
        return getattr(importlib.import_module(module), attribute)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the subcommands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.command(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def ffkv() -> None:
    """Reads the feed-forward layers of a causal language model as key-value memories.

    The steps run by hand in the order shown, or all at once by `snakemake` beside the Snakefile.
    """


def main() -> None:
    """Runs the command; a `UserError` becomes its message and exit code 2; SIGTERM ends it in good order."""
    end_in_good_order()
    try:
        ffkv()
    except UserError as error:
        click.echo(click.style("ffkv: ", fg="red", bold=True, reset=True) + str(error), err=True)
        sys.exit(2)
