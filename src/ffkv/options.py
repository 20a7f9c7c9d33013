"""How subcommands get their options: from the settings, so that defaults, limits and help are said once."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import click
from pydantic import TypeAdapter, ValidationError

from ffkv.settings import Section, Settings
from ffkv.settings.messages import refusal

READABLE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
WRITABLE = click.Path(path_type=Path)

MODEL = click.option("--model", "model_folder", type=FOLDER, required=True, help="The model stage's folder.")
VALUES = click.option("--values", "values_file", type=READABLE, required=True, help="File values.h5 of the run.")
TRIGGERS = click.option("--triggers", "triggers_file", type=READABLE, required=True, help="triggers.h5")
PREFIXES = click.option(
    "--prefixes", "prefixes_file", type=READABLE, required=True, help="File sampled_prefixes.h5 of the run."
)
PROJECTIONS = click.option(
    "--projections", "projections_file", type=READABLE, required=True, help="File values/projections/<group>.h5."
)
CORPUS = click.option(
    "--corpus", "corpus_file", type=READABLE, required=True, help="File of a corpus split, corpus/<split>.h5."
)


def setting(model: type[Section], *names: str) -> Callable:
    """Adds an option for each named setting of a section, with the default and the description that the section gives."""

    def decorate(command: Callable) -> Callable:
        for name in reversed(names):
            command = _option(model, name)(command)
        return command

    return decorate


def _option(model: type[Section], name: str) -> Callable:
    field = model.model_fields[name]
    flag = "--" + name.replace("_", "-")
    many = get_origin(field.annotation) is list
    if field.annotation is bool:
        flag += "/--no-" + name.replace("_", "-")
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    kind: Any = click.Choice(choices) if choices else str if many else field.annotation

    def check(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        value = list(value) if many else value
        try:
            TypeAdapter(Annotated[field.annotation, field]).validate_python(value)
        except ValidationError as error:
            raise click.BadParameter(refusal(error.errors()[0])) from error
        return value

    return click.option(
        flag,
        name,
        type=kind,
        default=field.default,
        multiple=many,
        callback=check,
        show_default=True,
        help=field.description,
    )


def seed_option(command: Callable) -> Callable:
    """Adds `--seed`."""
    return setting(Settings, "seed")(command)


def threads_option(command: Callable) -> Callable:
    """Adds `--threads` and applies it to every thread pool before the command imports torch."""

    def apply(context: click.Context, parameter: click.Parameter, value: int) -> int:
        from ffkv.process.runtime import configure

        configure(value)
        return value

    return click.option(
        "--threads",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        callback=apply,
        is_eager=True,
        help="Threads that this process may use.",
    )(command)


def part_options(name: str) -> Callable:
    """Adds `--<name> g --<name>s G`: this process does part g of G, counted from 0."""

    def decorate(command: Callable) -> Callable:
        flag = name.replace("_", "-")
        command = click.option(
            f"--{flag}s",
            f"{name}s",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help=f"Number of {flag.replace('-', ' ')}s.",
        )(command)
        return click.option(
            f"--{flag}",
            name,
            type=click.IntRange(0),
            default=0,
            show_default=True,
            help=f"Which {flag.replace('-', ' ')}, from 0.",
        )(command)

    return decorate
