"""Which token of the model a person means."""

import difflib

from ffkv.base.errors import UserError
from ffkv.run.results.indexes import Index
from ffkv.run.results.memory_name import whole_number
from ffkv.run.results.run_files import RunFiles

SUGGESTED = 10  # tokens that a message suggests
OTHER_LETTERS = 2  # by which a near spelling may be longer or shorter


@Index
def spellings(files: RunFiles, any_case: bool = False) -> dict[str, list[int]]:
    """Returns the ids of all tokens by their text without blanks at its two ends, in small letters if `any_case`."""
    ids: dict[str, list[int]] = {}
    for number, text in enumerate(files.vocabulary):
        ids.setdefault(text.strip().casefold() if any_case else text.strip(), []).append(number)
    return ids


def find_token(files: RunFiles, token: str | int) -> int:
    """Finds the id of a token, by its text to the letter or by its id.

    Raises UserError if there is none, and suggests others; or if several have this text.
    """
    if not isinstance(token, str):
        return _checked(files, token)
    ids = [number for number in spellings(files).get(token.strip(), []) if files.vocabulary[number] == token]
    if len(ids) > 1:
        raise UserError(f"{token!r} is the text of the tokens {', '.join(map(str, ids))}. Name one of them by its id.")
    if not ids:
        raise UserError(
            f"{token!r} is not a token of {files.anatomy.checkpoint}. Blanks count: ' a' and 'a' are two tokens, and"
            f" longer words are several.{_suggest(files, token)}"
        )
    return ids[0]


def find_spellings(files: RunFiles, token: str | int, any_case: bool = False) -> list[int]:
    """Finds the ids of all tokens that have a text but for blanks at its two ends and, if `any_case`, for capital letters; or the given id.

    Raises UserError if there is none, and suggests others.
    """
    if not isinstance(token, str):
        return [_checked(files, token)]
    word = token.strip()
    ids = spellings(files, True).get(word.casefold()) if any_case else spellings(files).get(word)
    if not ids:
        raise UserError(
            f"{token!r} is not a token of {files.anatomy.checkpoint}: longer words are several tokens."
            f"{_suggest(files, token)}"
        )
    return ids


def complete_token(files: RunFiles, beginning: str, most: int) -> list[str]:
    """Returns tokens that begin with a text, but for blanks at the two ends and capital letters, the shortest first."""
    wanted = beginning.strip().casefold()
    texts = {text for text in spellings(files) if wanted and text.casefold().startswith(wanted)}
    return sorted(texts, key=lambda text: (len(text), text))[:most]


def _checked(files: RunFiles, number: int) -> int:
    if not 0 <= whole_number("A token's id", number) < len(files.vocabulary):
        raise UserError(f"There is no token {number}. The model has tokens 0 to {len(files.vocabulary) - 1}.")
    return int(number)


def _suggest(files: RunFiles, token: str) -> str:
    """Returns tokens like this one: the same word, then its beginnings, the longest first, then what contains it.

    If there are none: words of about this length with nearly the same letters.
    """
    word = token.strip()
    near = [text for text in spellings(files) if word and text and (word.startswith(text) or word in text)]
    near.sort(key=lambda text: (not word.startswith(text), -len(text) if word.startswith(text) else 0))
    if not near:
        alike = [text for text in spellings(files) if abs(len(text) - len(word)) <= OTHER_LETTERS]
        near = difflib.get_close_matches(word, alike, SUGGESTED)
    ids = [number for text in near for number in spellings(files)[text]][:SUGGESTED]
    return f" Similar tokens: {', '.join(repr(files.vocabulary[number]) for number in ids)}." if ids else ""
