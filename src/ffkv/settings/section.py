"""What all sections of settings share: types with limits, and the checks of values."""

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from ffkv.errors import UserError
from ffkv.settings.messages import problems_of, regular_expression

# The limit of whole numbers that have no smaller one. With it, nothing that ffkv counts or allocates can overflow.
LARGEST = 10**9
Globs = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=str | list[str]),
]
Pattern = Annotated[str, AfterValidator(regular_expression)]
Whole = Annotated[int, Field(le=LARGEST)]
SectionType = TypeVar("SectionType", bound="Section")


class Section(BaseModel):
    """A group of settings. Unknown keys and values of a wrong type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    @field_validator("*")
    @classmethod
    def _without_nul(cls, value: Any) -> Any:
        """Refuses NUL characters, because no command line and no file name can contain them."""
        if any(isinstance(text, str) and "\0" in text for text in (value if isinstance(value, list) else [value])):
            raise ValueError("must be text without NUL")
        return value

    def contradictions(self) -> list[str]:
        """One sentence per pair of settings that exclude each other; empty if there is none."""
        return []


def section(model: type[SectionType], **values: Any) -> SectionType:
    """Makes one section from values, with the checks of a settings file.

    Raises:
        UserError: an unknown key, a wrong type, an impossible value or a contradiction; names the key, the value and
            what is allowed.
    """
    problems = problems_of(model, values) or model(**values).contradictions()
    if problems:
        raise UserError("\n".join(problems))
    return model(**values)
