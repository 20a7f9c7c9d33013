"""The `ffkv` command. A subcommand is imported only when it is called, so that the help is quick."""

import io
import signal
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import click

from ffkv.base.doors import in_package, load, load_all
from ffkv.base.process.runtime import configure
from ffkv.base.signals import TOLD, end_in_good_order, told_no_more
from ffkv.base.terminal import say
from ffkv.base.version import version
from ffkv.branches.registry import BRANCHES
from ffkv.branches.registry import BROKEN as BROKEN_BRANCHES

RENAMED = {"behaviour": "causes"}  # it was a letter away from `ffkv behaviours`, the steps
LISTED = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
ELSEWHERE: dict[str, str] = LISTED.pop("elsewhere")  # commands of packages/, which may not be installed
OF_BRANCHES = {name: ["", branch.about] for name, branch in BRANCHES.items()}  # made from the steps of branches
# Heading in the help: its subcommands, each with its function, and its line in the help.
GROUPS: dict[str, dict[str, list[str]]] = {
    heading: dict(
        each
        for name, command in listed.items()
        for each in (OF_BRANCHES if name == "branches" else {name: command}).items()
    )
    for heading, listed in LISTED.items()
}
_CORE = {name for group in GROUPS.values() for name in group}
# Those of packages beside the core. They cannot replace one of the core. One with a point in its name is a subcommand of another.
_GOOD, _WRONG = load_all("commands")
ADDED = {name: command for name, command in _GOOD.items() if name not in _CORE}
BROKEN = {name: error for name, error in {**BROKEN_BRANCHES, **_WRONG}.items() if name not in _CORE}
for _name, _added in ADDED.items():
    if "." in _name:
        continue
    _others, _own = GROUPS.get(_added.heading, {}), {_name: [_added.function, _added.about]}
    GROUPS[_added.heading] = {**_own, **_others} if _added.first else {**_others, **_own}
LOST = "Call it to be told why."
if any("." not in name for name in BROKEN):
    GROUPS["Cannot be used"] = {name: ["", LOST] for name in BROKEN if "." not in name}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


class Later(click.Command):
    """A subcommand that a package adds to a group of another. It is imported when it is called."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> click.Context:
        """Imports the subcommand, and makes the context in which that runs. Raises as `Lazy.get_command` does."""
        return _import(str(self.name), parent).make_context(info_name, args, parent, **extra)


def _import(name: str, context: click.Context | None) -> click.Command:
    if name in BROKEN:
        raise BROKEN[name]
    if name in BRANCHES:
        from ffkv.branches.commands import command_group

        return command_group(BRANCHES[name])
    if name in ADDED:
        return load("commands", name, ADDED[name].function, "click:Command")
    if name in COMMANDS:
        return EntryPoint(name, COMMANDS[name][0], "").load()
    raise click.UsageError(in_package(f"`ffkv {name.replace('.', ' ')}`", ELSEWHERE[name]), context)


class Lazy(click.Group):
    """A group whose subcommands are imported only when they are called."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Returns the names of the subcommands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Imports the subcommand of that name, and adds to a group what packages have for it. None if there is none.

        Raises UserError if it is of a package that cannot be imported, UsageError if it has another name now, or its package is not installed.
        """
        if name in RENAMED:
            raise click.UsageError(f"`ffkv {name}` is now `ffkv {RENAMED[name]}`, with the same options.", context)
        if "." in name or name not in {*COMMANDS, *ELSEWHERE}:
            return None
        command = _import(name, context)
        if isinstance(command, click.Group):
            for whole in {**ELSEWHERE, **ADDED, **BROKEN}:
                group, _, inside = whole.partition(".")
                if inside and group == name and inside not in command.commands:  # nobody replaces what the group has
                    about = ADDED[whole].about if whole in ADDED else LOST
                    command.add_command(Later(whole, help=about, hidden=whole not in {*ADDED, *BROKEN}), inside)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the subcommands without importing them."""
        width = max(map(len, COMMANDS))
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in commands.items()])


def show_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    """Prints the version, and ends."""
    if asked:
        say(f"ffkv, version {version()}")
        context.exit()


@click.command(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version, help="Show the version."
)
def ffkv() -> None:
    """Reads the feed-forward layers of a causal language model as key-value memories.

    `ffkv init` prepares a folder, in which `snakemake` runs all steps. `ffkv explore` and `ffkv trace` ask a finished run.
    Each step also runs by hand, in the order shown.
    """


ffkv.commands.update(dict.fromkeys(COMMANDS, ffkv))  # click looks for similar names there


def main() -> None:
    """Runs the command. SIGTERM ends it in good order.

    A `UserError` and a wrong option become a message and exit code 2; an exception that nobody foresaw becomes a
    sentence and exit code 70, see `ffkv.base.fault`.
    """
    end_in_good_order()
    configure()
    try:
        code = ffkv(standalone_mode=False) or 0
    except BaseException as error:  # what libraries in Rust raise where their own code fails is no `Exception`
        code = _say_why(error)
    told_no_more()
    sys.exit(code)


def _say_why(error: BaseException) -> int | str | None:
    if isinstance(error, SystemExit):
        return error.code
    if TOLD or isinstance(error, click.Abort | KeyboardInterrupt):  # whatever C code made of the exception of a signal
        say("stopped.", error=True)
        return 128 + signal.SIGTERM if signal.SIGTERM in TOLD else 1
    if isinstance(error, BrokenPipeError):  # whoever reads the output, such as `head`, has enough
        return 1
    if isinstance(error, click.ClickException):
        shown = io.StringIO()
        error.show(shown)
        say(shown.getvalue().rstrip("\n"), error=True, name=False)
        return error.exit_code
    from ffkv.base.fault import explain

    message, code = explain(error)
    say(message, error=True)
    return code
