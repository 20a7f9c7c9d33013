"""Options of the subcommands. Options that are settings take their default, limits and help from the settings."""

import functools
import gc
import shlex
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from click.core import ParameterSource
from pydantic import TypeAdapter, ValidationError

from ffkv.base.errors import one_line
from ffkv.base.fault import BatchTooLarge, causes
from ffkv.base.process import runtime
from ffkv.base.settings import Inputs, Jobs, Model, Section, section
from ffkv.base.settings.messages import refusal, shown
from ffkv.base.steps import FOR_READERS, Part, Step, Work
from ffkv.base.terminal import say

HALVINGS = 4  # of the tokens per batch, at most


class InputPath(click.Path):
    """A file, or a folder, that is there."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the path. What cannot be looked up is not called missing, as click would."""
        kind = "Folder" if self.dir_okay else "File"
        try:
            is_folder = stat.S_ISDIR(Path(value).stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            self.fail(f"{kind} {str(value)[:100]!r} does not exist.", param, ctx)
        except (OSError, ValueError) as error:
            self.fail(f"{str(value)[:100]!r} cannot be read: {getattr(error, 'strerror', error)}.", param, ctx)
        if is_folder != self.dir_okay:
            self.fail(f"{str(value)[:100]!r} is a {'folder' if is_folder else 'file'}.", param, ctx)
        return Path(value)


READABLE = InputPath(exists=True, dir_okay=False)
FOLDER = InputPath(exists=True, file_okay=False)


class OutputPath(click.Path):
    """A path at which a file or a folder can lie, whether there is one or not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the path. Refuses a name that is too long, or below a folder that may not be entered."""
        try:
            Path(value).lstat()
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, ValueError) as error:
            self.fail(f"{str(value)[:100]!r} cannot be written: {getattr(error, 'strerror', error)}.", param, ctx)
        return super().convert(value, param, ctx)


WRITABLE = OutputPath(path_type=Path)
NEW_FOLDER = OutputPath(path_type=Path, file_okay=False)
MODEL = click.option("--model", "model_folder", type=FOLDER, required=True, help="The folder model/ of the run.")
CORPUS = click.option(
    "--corpus", "corpus_file", type=READABLE, required=True, help="A split of the corpus, corpus/<split>.h5."
)
COMMIT = click.option(
    "--commit", "commit_file", type=READABLE, help="File of `ffkv resolve-commit`: read this commit of the hub."
)


def output_option(about: str, flag: str = "--output") -> Callable:
    """Adds an option that names a file or a folder to write."""
    return click.option(flag, type=WRITABLE, required=True, help=about)


# Settings that tell a step how to work: the attribute of `Work`, which is also the name of the option.
WORK = {f"model/{name}": name for name in ("device", "max_memory", "trust_remote_code")} | {
    "batches/tokens": "batch_tokens"
}


def flag_of(name: str) -> str:
    """Returns the option that sets a setting: `--per-key` for `per_key`."""
    return "--" + name.replace("_", "-")


def option_name(section_name: str, name: str) -> str:
    """Returns the name of the option that sets a setting. It is that of the setting, unless several sections have one."""
    return WORK.get(f"{section_name}/{name}", f"dictionary_{name}" if section_name == "dictionary" else name)


def command_line(settings: dict[str, Any], *names: str) -> str:
    """Returns settings as options of a command, quoted for the shell, such as `--per-key 50 --device auto`.

    `settings`: all settings of a run, as nested dictionaries. `names`: sections such as `triggers`, settings such as
    `model/device`, or settings of the top level such as `seed`.
    """
    words: list[str] = []
    for name in names:
        section, _, key = name.partition("/")
        inside = settings[section] if isinstance(settings[section], dict) else {section: settings[section]}
        for setting_name, value in {key: inside[key]}.items() if key else inside.items():
            if f"{section}/{setting_name}" not in FOR_READERS:
                words += _words(option_name(section, setting_name), value)
    return shlex.join(words)


def _words(name: str, value: Any) -> list[str]:
    """Returns one setting as words of a command line. A list or a mapping repeats its option for each of its items."""
    if isinstance(value, bool):
        return [flag_of(name if value else f"no_{name}")]
    if isinstance(value, dict):
        pairs = ((key, items if isinstance(items, list) else [items]) for key, items in value.items())
        value = [f"{key}={item}" for key, items in pairs for item in items]
    items = value if isinstance(value, list) else [value]
    return [word for item in items for word in (flag_of(name), str(item))]


def _with(options: Sequence[Callable], hand_over: Callable[[dict[str, Any]], dict[str, Any]] | None = None) -> Callable:
    """Adds options to a command. The command gets what `hand_over` makes of all that is given; without it, what is given."""

    def decorate(command: Callable) -> Callable:
        decorated = (
            command if hand_over is None else functools.wraps(command)(lambda **given: command(**hand_over(given)))
        )
        return functools.reduce(lambda inner, option: option(inner), reversed(options), decorated)

    return decorate


def setting(model: type[Section], *names: str) -> Callable:
    """Adds an option for each named setting of a section. The section gives its default, limits and help."""
    return _with([_option(model, name) for name in names])


def takes(model: type[Section], *names: str, argument: str = "") -> Callable:
    """Adds options for settings of a section, and hands the command one object of the section with their values.

    `names`: the settings that the command takes; if none is named, all but those for readers. The others keep their defaults.
    `argument`: the command's argument; by default the name of the section in small letters.
    """
    section_name = model.__name__.lower()
    chosen = names or tuple(each for each in model.model_fields if f"{section_name}/{each}" not in FOR_READERS)
    of_section = argument or section_name
    options = [_option(model, name) for name in chosen]
    return _with(options, lambda given: {of_section: _taken(model, chosen, given), **given})


def _taken(model: type[Section], names: Sequence[str], given: dict[str, Any]) -> Section:
    """Takes the values of some settings out of what is given, and returns the section that they make."""
    return section(model, **{name: given.pop(option_name(model.__name__.lower(), name)) for name in names})


def _option(model: type[Section], name: str) -> Callable:
    field, option = model.model_fields[name], option_name(model.__name__.lower(), name)
    annotation: Any = field.annotation
    if get_origin(annotation) in (Union, UnionType):  # a setting that may be missing: `int` of `int | None`
        types = [one for one in get_args(annotation) if one is not type(None)]
        annotation = types[0] if len(types) == 1 else str  # of several types, text is read
    origin, inside = get_origin(annotation), get_args(annotation)
    mapping, many = origin is dict, origin in (dict, list)
    flag = f"{flag_of(option)}/{flag_of(f'no_{option}')}" if annotation is bool else flag_of(option)
    kind: Any = click.Choice(inside) if origin is Literal else annotation
    if many:  # numbers are read as numbers, everything else as text
        item = inside[0]
        while get_origin(item) is Annotated:
            item = get_args(item)[0]
        kind = item if item in (int, float) else str
    limits: Any = Annotated[field.annotation, field]

    def check(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        value = list(value) if many else value
        try:
            if mapping:  # items `key=value`; if the values are lists, a key may come several times
                if wrong := [each for each in value if "=" not in each]:
                    raise click.BadParameter(f"{shown(wrong[0])} is not NAME=VALUE. Repeat the option for each name.")
                pairs = [(key, item) for key, _, item in (each.partition("=") for each in value)]
                several = {key: [item for other, item in pairs if other == key] for key, _ in pairs}
                value = several if get_origin(inside[1]) is list else dict(pairs)
            checked = TypeAdapter(limits).validate_python(value)
        except ValidationError as error:
            raise click.BadParameter(refusal(error.errors()[0])) from error
        return checked if annotation is str else value

    needed = field.is_required()
    return click.option(
        flag,
        option,
        type=kind,
        default=None if needed else [*field.default] if mapping else field.default,
        required=needed,
        multiple=many,
        callback=check,
        show_default=True,
        help=field.description,
    )


def also_argument(name: str, flag: str, metavar: str) -> Callable:
    """Lets a person write an option's value without its flag, as in `ffkv plan mine.yaml`. `name`: its parameter."""

    def take(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        if value is not None:
            context.default_map = {**(context.default_map or {}), name: value}
        return value

    def once(given: dict[str, Any]) -> dict[str, Any]:
        source = click.get_current_context().get_parameter_source(name)
        if given.pop("word") is not None and source is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{metavar} is written twice: as a word, and behind {flag}. Leave out one of them.")
        return given

    return _with([click.argument("word", required=False, metavar=f"[{metavar}]", is_eager=True, callback=take)], once)


ANNOTATIONS = click.option(
    "--annotations",
    type=WRITABLE,
    help="Folder of the run's annotations.  [default: annotations/<run>, beside results]",
)


# Adds options for what a person alone allows a finished run, whatever its files say. The command gets them as `allowed`.
allowing = _with(
    [_option(Model, "trust_remote_code"), ANNOTATIONS],
    lambda given: {"allowed": {name: given.pop(name) for name in ("trust_remote_code", "annotations")}, **given},
)
seed_option = setting(Jobs, "seed")


def _limit_threads(context: click.Context, parameter: click.Parameter, value: int) -> int:
    """Limits every thread pool, before the command imports torch."""
    runtime.configure(value)
    return value


_threads = functools.partial(
    click.option,
    "--threads",
    type=click.IntRange(1),
    callback=_limit_threads,
    is_eager=True,
    help="Number of threads that this process may use.",
)
threads_option = _threads(default=1, show_default=True)
# Of a command that a person waits for. Snakemake and SLURM say how many threads a job of theirs has.
all_threads_option = _threads(default=runtime.usual_threads, show_default="one per core; in a job, those of the job")


def part_options(name: str) -> Callable:
    """Adds `--<name> g` and `--<name>s G`: this process works on part g of G parts. Parts count from 0."""
    noun, option = name.replace("_", " "), functools.partial(click.option, show_default=True)
    count = option(flag_of(f"{name}s"), type=click.IntRange(1), default=1, help=f"Number of {noun}s.")
    index = option(flag_of(name), type=click.IntRange(0), default=0, help=f"The {noun} to work on. Counts from 0.")
    return lambda command: index(count(command))


def section_of(settings: type[Section], name: str) -> type[Section]:
    """Returns the class of a section of settings; of a mapping, such as `behaviours`, that of its entries."""
    annotation: Any = settings.model_fields[name].annotation
    return get_args(annotation)[1] if get_origin(annotation) is dict else annotation


PARTS = {"layer_groups": "layer_group", "shards": "shard"}


def step_options(step: Step, of: type[Section] = Inputs) -> Callable:
    """Adds an option for each setting of a step, and `--threads` if its jobs may have several.

    The command gets an object of each section, by the section's name, with what was given; `seed`; and `work`.

    of: the settings that have the sections that the step takes.
    """
    of_work = {name: attribute for name, attribute in WORK.items() if name in step.settings}
    parts = {name: part for name, part in PARTS.items() if name in step.settings}
    chosen: dict[str, list[str]] = {}  # the settings of each section
    for name in step.settings:
        section_name, _, key = name.partition("/")
        if section_name not in ("seed", *PARTS) and name not in of_work:
            fields = [key] if key else section_of(of, section_name).model_fields
            fields = [each for each in fields if f"{section_name}/{each}" not in FOR_READERS]
            chosen.setdefault(section_name, []).extend(fields)

    options = [_option(section_of(of, name), key) for name, keys in chosen.items() for key in keys]
    options += [_option(section_of(of, name.partition("/")[0]), name.partition("/")[2]) for name in reversed(of_work)]
    options += [seed_option] if "seed" in step.settings else []
    options += [part_options(part) for part in reversed(parts.values())]
    options += [threads_option] if step.has_threads else []

    def hand_over(given: dict[str, Any]) -> dict[str, Any]:
        threads = given.pop("threads", 1)
        if step.has_threads and step.imports != "tables":
            runtime.torch_with(threads)
        work = {attribute: given.pop(attribute) for attribute in of_work.values()}
        for name, part in parts.items():
            work["part"] = Part(given.pop(part), given.pop(name))
        sections = {name: _taken(section_of(of, name), keys, given) for name, keys in chosen.items()}
        return {**({"work": Work(**work)} if work else {}), **sections, **given}

    halvings = HALVINGS if {"batches", "batches/tokens"} & {*step.settings} else 0  # else there is nothing to halve
    return lambda command: _with(options, hand_over)(
        functools.wraps(command)(functools.partial(_with_room, command, halvings))
    )


def _with_room(command: Callable, halvings: int, work: Work | None = None, **given: Any) -> None:
    """Calls the command of a step. If a batch does not fit into the memory, calls it again with half as many tokens per batch."""
    while True:
        try:
            return command(**given, **({"work": work} if work else {}))
        except Exception as error:
            too_large = isinstance(error, BatchTooLarge) or type(error).__name__ == "OutOfMemoryError"  # torch's
            if work is None or work.halvings == halvings or not too_large:
                raise
            reason = one_line([*causes(error)][-1], 200)
        gc.collect()  # what the failed call held
        work = replace(work, halvings=work.halvings + 1)
        say(f"The memory is full ({reason}). The step begins again with half as many tokens per batch.", error=True)
