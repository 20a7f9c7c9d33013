"""Which modules the numbers of each rule depend on.

The rules' `code` inputs and the identity of a saved shard both come from this list: an edit of a listed module repeats
the rule, and a shard that was saved before the edit is not continued. An edit of any other module does neither.
"""

import hashlib
from pathlib import Path

# Rule: paths below src/ffkv. A folder stands for all modules in it.
NUMBERS_DEPEND_ON: dict[str, tuple[str, ...]] = {
    "triggers": ("activations", "model", "fairseq"),
    "sampled_prefixes": ("activations", "model", "fairseq"),
}
PACKAGE = Path(__file__).parent


def code_files(rule: str) -> list[Path]:
    """The source files that the numbers of a rule depend on, sorted."""
    places = [PACKAGE / name for name in NUMBERS_DEPEND_ON[rule]]
    return sorted(
        path for place in places for path in (place.rglob("*") if place.is_dir() else [place]) if path.is_file()
    )


def code_hash(rule: str) -> str:
    """The first 16 hexadecimal digits of a SHA-256 hash over these files."""
    digest = hashlib.sha256()
    for path in code_files(rule):
        if path.suffix != ".pyc":
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
