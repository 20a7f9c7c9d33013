"""Which ffkv this is: the release, and the commit behind it.

A clone is asked each time: what an editable install noted once would be wrong after the next commit. A wheel and a source
distribution carry the answer in a file (setup.py).
"""

import contextlib
import os
import subprocess
from functools import cache
from pathlib import Path

RELEASE = "1.0.0"  # its tag is v1.0.0
ARCHIVED = "$Format:%h$"  # in an archive that git made, the commit (.gitattributes)
PACKAGE = Path(__file__).parents[1]


@cache
def version() -> str:
    """Returns the version, as PEP 440 writes it.

    "1.0.0" is the release. "1.0.0+12.g1a2b3c4d" is the twelfth commit behind it. "1.0.0+g1a2b3c4d" is a commit of a clone that lacks the
    release's tag, such as a shallow one, or of an archive that git made. ".changed" at the end: the code is not that of the commit.
    "1.0.0+unknown": there is no git, or no clone.
    """
    with contextlib.suppress(FileNotFoundError):
        return PACKAGE.joinpath("version.txt").read_text().strip()
    clone = PACKAGE.parents[1]
    # What git sets in its hooks would name another repository, and so would one that the clone's folder lies in.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_CEILING_DIRECTORIES"] = str(clone.parent)

    def git(*words: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(clone), *words]  # it writes nothing
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10, env=environment)
        return done.stdout.strip()

    try:
        commit = git("describe", "--tags", "--match", f"v{RELEASE}", "--always", "--abbrev=9")
        changed = git("status", "--porcelain", "--", "src", "packages", "workflow") and "changed"
    except (OSError, subprocess.SubprocessError):  # no git, or no clone that it reads; or a disk that hangs
        return f"{RELEASE}+unknown" if ARCHIVED.startswith("$") else f"{RELEASE}+g{ARCHIVED}"
    behind = commit.removeprefix(f"v{RELEASE}") if commit.startswith("v") else f"g{commit}"
    parts = filter(None, [*behind.split("-"), changed])
    return f"{RELEASE}+{'.'.join(parts)}".removesuffix("+")
