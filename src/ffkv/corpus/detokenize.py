"""Turns text whose words and signs are separated by blanks, as in WikiText, back into text as people write it."""

import re
from collections.abc import Callable

# In this order. Each rule takes back what the tokenizers of WikiText and of the Penn Treebank do to a text.
RULES: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r" @([-,.])@ ", r"\1"),  # WikiText: state @-@ of @-@ the @-@ art, 1 @,@ 000, 3 @.@ 14
    (r"(?m)^([ ]*)((?:= )+=)(?= )", lambda match: match[1] + match[2].replace(" ", "")),  # a heading begins
    (r"(?m)(?<= )((?:= )+=)(?=[ ]*$)", lambda match: match[1].replace(" ", "")),  # a heading ends
    (r"s ' (?=\w)", "s' "),  # the students ' books
    (r'" ([^"\n]*?) "', r'"\1"'),
    (r"(?<!\S)' ([^'\n]*?) '(?!\S)", r"'\1'"),
    (r" (n't|'(?:s|m|d|re|ve|ll)|(?<=n )'t)(?!\w)", r"\1"),  # WikiText: don 't, the Penn Treebank: do n't
    (r"(?<=\d) ([:/–]) (?=\d)", r"\1"),  # 9 : 30, 1 / 2, 1939 – 45
    (r"([(\[{$£€]) ", r"\1"),
    (r" ([)\]}%])", r"\1"),
    (r" ([,.;:!?]+)(?= |$|[\"')\]])", r"\1"),
]


def detokenize(text: str) -> str:
    """Removes the blanks that a tokenizer put before and after signs, and the marks `@-@`, `@,@` and `@.@` of WikiText.

    It cannot know all that was lost. Quotation marks that have no partner keep their blanks.
    """
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    return text
