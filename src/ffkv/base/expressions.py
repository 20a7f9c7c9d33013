"""Regular expressions that users write. RE2 matches them: its time grows with the text, its memory does not."""

from typing import Any

LONGEST = 500  # characters
MEMORY = 2**20  # bytes that a compiled expression and its states may take


def compile_expression(text: str) -> Any:
    """Compiles a regular expression. It has `search`, as those of the standard library have, for text and for UTF-8.

    Raises:
        ValueError: it is none, is too long, or needs what RE2 lacks. The message says which.
    """
    import re2  # not needed by most steps

    if len(text) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST} characters")
    options = re2.Options()
    options.max_mem, options.log_errors, options.never_capture = MEMORY, False, True
    try:
        return re2.compile(text.encode(), options)
    except UnicodeEncodeError:
        raise ValueError("it holds half a character") from None
    except re2.error as error:
        raise ValueError(
            f"{error.args[0].decode(errors='replace')}; ffkv takes the syntax of RE2, without lookaround, backreferences,"
            " possessive repeats, and more than 1,000 repeats of anything"
        ) from None
