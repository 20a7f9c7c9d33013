"""Which token of the model a person means."""

from ffkv.base.errors import UserError
from ffkv.run.results.run_indexes import RunIndexes

SUGGESTED = 10  # tokens that a message suggests


def find_token(files: RunIndexes, token: str | int) -> int:
    """The id of a token, by its text to the letter or by its id.

    Raises:
        UserError: there is none, and suggests others; or several have this text.
    """
    if not isinstance(token, str):
        return _checked(files, token)
    ids = [number for number in files.spellings.get(token.strip(), []) if files.vocabulary[number] == token]
    if len(ids) > 1:
        raise UserError(f"{token!r} is the text of the tokens {', '.join(map(str, ids))}. Name one of them by its id.")
    if not ids:
        raise UserError(
            f"{token!r} is not a token of {files.anatomy.checkpoint}. Blanks count: ' a' and 'a' are two tokens, and"
            f" longer words are several.{_suggest(files, token)}"
        )
    return ids[0]


def find_spellings(files: RunIndexes, token: str | int, any_case: bool = False) -> list[int]:
    """The ids of all tokens that have a text but for blanks at its two ends, or the given id.

    Args:
        token: the text or the id.
        any_case: capital and small letters of a text are the same.
    Raises:
        UserError: there is none, and suggests others.
    """
    if not isinstance(token, str):
        return [_checked(files, token)]
    word = token.strip()
    ids = files.spellings_in_any_case.get(word.casefold()) if any_case else files.spellings.get(word)
    if not ids:
        raise UserError(
            f"{token!r} is not a token of {files.anatomy.checkpoint}: longer words are several tokens."
            f"{_suggest(files, token)}"
        )
    return ids


def _checked(files: RunIndexes, number: int) -> int:
    if not 0 <= number < len(files.vocabulary):
        raise UserError(f"There is no token {number}. The model has tokens 0 to {len(files.vocabulary) - 1}.")
    return int(number)


def _suggest(files: RunIndexes, token: str) -> str:
    """Tokens like this one: the same word, then its beginnings, the longest first, then what contains it."""
    word = token.strip()
    near = [text for text in files.spellings if word and text and (word.startswith(text) or word in text)]
    near.sort(key=lambda text: (not word.startswith(text), -len(text) if word.startswith(text) else 0))
    ids = [number for text in near for number in files.spellings[text]][:SUGGESTED]
    return f" Similar tokens: {', '.join(repr(files.vocabulary[number]) for number in ids)}." if ids else ""
