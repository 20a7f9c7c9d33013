"""Sheets: what annotators get to see, and the secret key that says what it is.

A sheet lies in two files. `sheets/<name>.json` has the texts and the order in which each annotator sees them. Nothing
in it tells a layer, a memory, or whether prefixes were drawn at random. `secret/<name>.json` tells all of that.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.files.journal import Stored, problem_of
from ffkv.base.files.stored import check_identities
from ffkv.base.lookup import exists, find, is_file, read_bytes
from ffkv_annotation.records import Record

SHEETS, SECRET = "sheets", "secret"
LARGEST = 2**27  # bytes of a file


class Item(Stored):
    """What an annotator judges."""

    # of a key: the texts of its prefixes, in random order. A prefix is named by its place here, from 0.
    prefixes: tuple[str, ...] = ()
    text: str = ""  # of a change: the text of the prefix
    before: str = ""  # of a change: the token that the residual predicts
    after: str = ""  # of a change: the token that the last layer makes of it


class Sheet(Stored):
    """What annotators see."""

    name: str  # name of the sheet
    kind: Literal["key", "change"]  # "key": keys by their prefixes; "change": predictions that the last layer changes
    identity: dict[str, str]  # hashes of the run's model, tokenizer and train split
    items: dict[str, Item]  # the items by their random ids
    orders: dict[str, tuple[str, ...]]  # the ids that each person judges, in order, by the person's name

    def record(self, annotator: str, item: str, **said: Any) -> Record:
        """Returns what an annotator ("person:anna") says about an item. Raises ValidationError if it cannot be said."""
        about = {"sheet": self.name, "item": item, "identity": self.identity, "kind": self.kind}
        return Record(annotator=annotator, **about, **said)


class Origin(Stored):
    """What an item of a sheet is."""

    # "trigger": a key with its trigger examples, or a change of the run; "random": a control
    sample: Literal["trigger", "random"]
    layer: int  # the layer; of a control the layer of the key whose lengths its prefixes have; of a change the last one
    memory: int = -1  # the memory in its layer; of a control its number in its layer; -1 of a change
    # of a key: rank of each prefix among the key's trigger examples; of a control its number [prefix]
    ranks: tuple[int, ...] = ()
    sentence: tuple[int, ...] = ()  # sentence of each prefix in the train split [prefix]
    position: tuple[int, ...] = ()  # length of each prefix in tokens [prefix]
    row: int = -1  # of a change: row of the table prediction_changes
    other: int = -1  # of a control among changes: the row whose second token it has
    repeats: str = ""  # the item that this one repeats for one annotator; "" if it repeats none


class SecretKey(Stored):
    """What the items of a sheet are."""

    name: str  # name of the sheet
    identity: dict[str, str]  # as that of the sheet
    origins: dict[str, Origin]  # what each item is, by its id


def write_sheet(folder: Path, sheet: Sheet, secret: SecretKey) -> Path:
    """Writes a sheet and its secret key into `annotations/<run>`. Returns the file of the sheet."""
    path = folder / SHEETS / f"{sheet.name}.json"
    # The key first: a sheet without a key would be of no use.
    for model, place in ((secret, folder / SECRET / path.name), (sheet, path)):
        with atomic(place, summed=False) as temporary:
            temporary.write_bytes(_content(model))
    return path


def _content(model: Sheet | SecretKey) -> bytes:
    return f"{model.model_dump_json(indent=1)}\n".encode()


def is_begun(folder: Path, sheet: Sheet) -> bool:
    """Tells whether a start that was interrupted has written a sheet. Raises UserError if another one has its name."""
    path = folder / SHEETS / f"{sheet.name}.json"
    if exists(path) and not (is_file(path) and path.read_bytes() == _content(sheet)):
        raise UserError(f"{path} exists, and people may have begun with it. Choose another name with --name.")
    return exists(path)


def sheet_names(folder: Path) -> list[str]:
    """Returns the names of the sheets in `annotations/<run>`, sorted."""
    return sorted(path.stem for path in find(folder / SHEETS, "[!.]*.json"))


def read_sheet(folder: Path, name: str, belongs_to: Mapping[str, Any] | None = None) -> Sheet:
    """Reads a sheet of `annotations/<run>`. `belongs_to`: the identity of the run; None: any.

    Raises UserError if there is no sheet of this name, it is damaged, or it belongs to another model, tokenizer or corpus.
    """
    names = sheet_names(folder)
    if name not in names:
        raise UserError(
            f"There is no sheet {name!r} in {folder}. "
            + (f"Choose one of: {', '.join(names)}." if names else "Make some with `ffkv annotate sheets`.")
        )
    return _read(folder / SHEETS / f"{name}.json", Sheet, belongs_to)


def read_secret(folder: Path, name: str, belongs_to: Mapping[str, Any] | None = None) -> SecretKey:
    """Reads the secret key of a sheet. Arguments and errors as for `read_sheet`."""
    return _read(folder / SECRET / f"{name}.json", SecretKey, belongs_to)


Form = TypeVar("Form", Sheet, SecretKey)


def _read(path: Path, form: type[Form], belongs_to: Mapping[str, Any] | None) -> Form:
    try:
        found = form.model_validate_json(read_bytes(path, LARGEST))
    except FileNotFoundError as error:
        raise UserError(
            f"{path} does not exist. Without it nobody can tell what the items of the sheet are."
        ) from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. Check its rights.") from error
    except ValidationError as error:
        problem = ": ".join(problem_of(error))
        raise UserError(f"{path} is not a sheet of ffkv ({problem}). Take it from a copy.") from error
    check_identities(path, found.identity, belongs_to or {})
    return found
