"""Texts in CSV files that people open in a spreadsheet, where a text can be taken for a formula and run."""

# A text that begins so is a formula. Spreadsheets for East Asia take the wide signs as well.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")


def safe_text(text: str) -> str:
    """Returns the text; behind an apostrophe if a spreadsheet would take it for a formula."""
    return f"'{text}" if _is_formula(text) else text


def read_safe_text(text: str) -> str:
    """Returns the text that `safe_text` was given."""
    return text[1:] if text.startswith("'") and _is_formula(text[1:]) else text


def _is_formula(text: str) -> bool:
    """Tells whether a text is a formula, also behind blanks, line ends, and the apostrophes in front of one."""
    return text.lstrip(" \n'").startswith(FORMULA)
