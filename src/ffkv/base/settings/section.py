"""What all sections of settings share: types with limits, and the checks of values."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.functional_validators import WrapValidator, field_validator
from pydantic.types import ByteSize

from ffkv.base.errors import UserError
from ffkv.base.settings.messages import WORDS, new_names, sentences, shown

# The limit of whole numbers that have no smaller one. With it, nothing that ffkv counts or allocates can overflow.
LARGEST = 10**9
LONGEST = 500  # characters of a regular expression
EXPRESSION_BYTES = 2**20  # memory that a compiled one and its states may take


def _globs(value: Any) -> Any:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list | tuple):
        raise ValueError("must be text or a list of texts")
    return value


Globs = Annotated[
    list[Annotated[str, Field(min_length=1)]], BeforeValidator(_globs, json_schema_input_type=str | list[str])
]


def compile_expression(text: str) -> Any:
    """Compiles a regular expression of a user. RE2 matches it: its time grows with the text, its memory does not.

    It has `search`, as those of the standard library have, for text and for UTF-8. Raises ValueError if it is none, is too
    long, or needs what RE2 lacks. The message says which.
    """
    import re2  # not needed by most steps

    if len(text) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST} characters")
    options = re2.Options()
    options.max_mem, options.log_errors, options.never_capture = EXPRESSION_BYTES, False, True
    try:
        return re2.compile(text.encode(), options)
    except UnicodeEncodeError:
        raise ValueError("it holds half a character") from None
    except re2.error as error:
        raise ValueError(
            f"{error.args[0].decode(errors='replace')}; ffkv takes the syntax of RE2, without lookaround, backreferences,"
            " possessive repeats, and more than 1,000 repeats of anything"
        ) from None


def _regular_expression(value: str) -> str:
    """Returns the value if it is a regular expression. Raises ValueError, which says where the error is."""
    try:
        compile_expression(value)
    except ValueError as error:
        raise ValueError(f"must be a regular expression ({error})") from error
    return value


Pattern = Annotated[str, AfterValidator(_regular_expression)]


def _no_loop(name: str) -> str:
    if re.search(r"(.+)\1{19}$", name):
        raise ValueError("must not repeat a part 20 times at its end, which Snakemake takes for a loop")
    return name


# Of a run, a comparison, a behaviour or a concept: it is the name of a folder, and a wildcard of Snakemake.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"), AfterValidator(_no_loop)]
# Of an option that is repeated, or has commas between the names.
Names = Annotated[list[str], AfterValidator(lambda given: [name.strip() for text in given for name in text.split(",")])]
Whole = Annotated[int, Field(le=LARGEST)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


def _or_auto(given: Any, check: Callable) -> Any:
    try:
        return check(given)
    except ValidationError:
        raise ValueError(f"must be a whole number from 1 to {LARGEST}, or 'auto'") from None


WholeOrAuto = Annotated[Annotated[Whole, Field(ge=1)] | Literal["auto"], WrapValidator(_or_auto)]


def memory_bytes(size: str) -> int:
    """Returns the bytes of a size such as "20GiB", "1.5GB", "800MB" or "1000". Raises ValueError if it is none."""
    if not re.fullmatch(r"\d{1,15}(\.\d{1,9})?\s*([KMGT]i?B)?", size, re.IGNORECASE):
        raise ValueError("must be a size of memory such as '20GiB' or '800MB'")
    return TypeAdapter(ByteSize).validate_python(size)


def _memory(given: Any) -> Any:
    """YAML makes numbers of a GPU's number and of a number of bytes."""
    if not isinstance(given, dict) or any(type(size) not in (str, int) for size in given.values()):
        raise ValueError("must be a mapping of devices to memory such as {0: 20GiB, cpu: 60GiB}")
    for device, size in given.items():
        if not re.fullmatch(r"\d{1,3}|cpu", str(device)):
            raise ValueError(f"must name GPUs by their numbers, and cpu; {str(device)[:50]!r} is neither")
        memory_bytes(str(size))
    return {str(device): str(size) for device, size in given.items()}


Memory = Annotated[dict[str, str], BeforeValidator(_memory, json_schema_input_type=dict[str, str | int])]


def _gguf(name: str) -> str:
    if name and (not name.lower().endswith(".gguf") or "/" in name):
        raise ValueError("must be the name of a file in model.checkpoint, ending in .gguf, without its folder")
    return name


GgufFile = Annotated[str, AfterValidator(_gguf)]
Scalar = str | bool | int | float


def _where(given: Any) -> Any:
    """YAML makes numbers and truth values of some texts."""
    if not isinstance(given, dict):
        raise ValueError("must be a mapping of columns to values such as {language: en} or {language: [en, de]}")
    for name in given:
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise ValueError(f"must name columns by text without '=' and NUL; {str(name)[:50]!r} is none")
    return {name: _values(name, value if isinstance(value, list) else [value]) for name, value in given.items()}


def _values(name: str, given: list[Any]) -> list[str]:
    if not given:
        raise ValueError(f"must name one value or more of the column {name[:50]!r}")
    if any(not isinstance(value, Scalar) or "\0" in str(value) for value in given):
        raise ValueError(f"must give the column {name[:50]!r} a text, a number, true or false, or a list of them")
    if len({isinstance(value, bool) for value in given}) > 1:
        raise ValueError(
            f"must give the column {name[:50]!r} values of one kind; YAML reads no, off, yes and on as truth values, unless they"
            " are in quotes"
        )
    return [str(value).lower() if isinstance(value, bool) else str(value) for value in given]


Where = Annotated[
    dict[str, list[str]], BeforeValidator(_where, json_schema_input_type=dict[str, Scalar | list[Scalar]])
]
SectionType = TypeVar("SectionType", bound="Section")
Function = TypeVar("Function", bound=Callable[..., Any])


class Section(BaseModel):
    """A group of settings. Unknown keys and values of a wrong type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    def __init__(self, /, **values: Any) -> None:
        """Makes the section. Settings that are not given have their defaults.

        Raises UserError for an unknown key, a wrong type or an impossible value; it names the key, the value and what is allowed.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UserError("\n".join(sentences(type(self), error))) from None  # it says the same, for programmers

    # Pydantic calls an __init__ without this mark for nested sections too, and could not tell where the error is.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    if not TYPE_CHECKING:  # a type checker would then allow every name

        def __getattr__(self, name: str) -> Any:
            """Says what a setting is called now, if its old name is read."""
            if found := new_names(name) or new_names(f"{type(self).__name__.lower()}.{name}"):
                raise AttributeError(found[0])
            return super().__getattr__(name)

    @field_validator("*")
    @classmethod
    def _without_nul(cls, value: Any) -> Any:
        """Refuses NUL characters, because no command line and no file name can contain them."""
        if any(isinstance(text, str) and "\0" in text for text in (value if isinstance(value, list) else [value])):
            raise ValueError("must be text without NUL")
        return value

    def contradictions(self) -> list[str]:
        """Returns one sentence per pair of settings that exclude each other; empty if there is none."""
        return []

    def _told(self, wrong: Mapping[str, Any], **others: Any) -> list[str]:
        """Returns the sentences of `messages.toml` about what is wrong. `others`: what they tell beside the settings."""
        values = {name: shown(value) for name, value in {**dict(self), **others}.items()} if any(wrong.values()) else {}
        return [WORDS[type(self).__name__.lower()][name].format(**values) for name, holds in wrong.items() if holds]


def section(model: type[SectionType], /, **values: Any) -> SectionType:
    """Makes one section from values, with the checks of a settings file. Raises: see `Section`, and contradictions."""
    made = model(**values)
    if problems := made.contradictions():
        raise UserError("\n".join(problems))
    return made


def third(size: int, least: int) -> int:
    """Returns a third of a size, rounded up; `least` if a third is less, but never more than the size. A control has so much."""
    return min(size, max(least, -(-size // 3)))


def documents(model: type[Section]) -> Callable[[Function], Function]:
    """Writes the settings of a section into the signature and the docstring of a function with `**options`.

    There they stand in place of `{options}`, but for those that the docstring describes itself. So editors and notebooks know
    them, and nobody writes them twice.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        fields, types = [*model.model_fields.items()], get_type_hints(model)  # without the limits of a list's items
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=types[name])
            for name, field in fields
            if name not in signature.parameters
        ]
        function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        about = inspect.cleandoc(str(function.__doc__))  # as Python 3.13 keeps it
        told = [(name, " ".join(str(field.description).split())) for name, field in fields if f" {name}: " not in about]
        lines = [f"{name}: {what}" for name, what in told]
        function.__doc__ = about.replace("{options}", "\n    ".join(lines))
        return function

    return decorate
