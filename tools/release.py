"""What a built package must hold: `python -m tools.release build/release`.

`make release` builds a source distribution and a wheel into the folder. Both must hold what git has of the package and of the workflow, and
nothing else; both must be of the same version.
"""

import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[1]
BESIDE = ("workflow/", "envs/", "profiles/", "Snakefile")  # in the wheel: below ffkv/clone/
PAGE = re.compile(r"docs/[\w-]+\.md")  # in the wheel, too
BUILD = (
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
)  # what the package is built from, and legal text
VERSION = "ffkv/version.txt"


def listed(folder: Path = ROOT) -> set[str]:
    """Returns the files of a clone that a package holds or is built from, by git."""
    command = ["git", "-C", str(folder), "ls-files"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name for name in names if name.startswith(("src/", *BESIDE)) or PAGE.fullmatch(name) or name in BUILD}


def in_wheel(name: str) -> str | None:
    """Returns where a file of the clone lies in the wheel; None if the wheel has it among its metadata, or not at all."""
    if name.startswith("src/"):
        return name.removeprefix("src/")
    return f"ffkv/clone/{name}" if name.startswith(BESIDE) or PAGE.fullmatch(name) else None


def differences(expected: set[str], found: set[str]) -> list[str]:
    """Returns what a package lacks and what it should not have, a line each."""
    return [f"lacks {name}" for name in sorted(expected - found)] + [
        f"holds {name}" for name in sorted(found - expected)
    ]


def wheel_problems(wheel: Path, names: set[str]) -> list[str]:
    """Returns what is wrong with a wheel. `names`: what `listed` returns."""
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if not name.endswith("/")}
        metadata = next(name for name in held if name.endswith(".dist-info/METADATA"))
        about = Parser().parsestr(archive.read(metadata).decode())
        told = archive.read(VERSION).decode() if VERSION in held else None
    own = {name for name in held if not name.startswith(metadata.removesuffix("METADATA"))}
    problems = differences({VERSION, *filter(None, map(in_wheel, names))}, own)
    if told != about["Version"]:
        problems.append(f"says {told} in {VERSION}, and {about['Version']} in its metadata")
    return problems


def source_problems(source: Path, names: set[str]) -> list[str]:
    """Returns what is wrong with a source distribution. `names`: what `listed` returns."""
    with tarfile.open(source) as archive:
        held = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    own = {name for name in held if ".egg-info/" not in name and name not in ("PKG-INFO", "setup.cfg")}
    return differences({f"src/{VERSION}", *names}, own)


def main(folder: Path) -> list[str]:
    """Returns what is wrong with the wheel and the source distribution of a folder, a line each."""
    (wheel,), (source,) = folder.glob("ffkv-*.whl"), folder.glob("*.tar.gz")
    names = listed()
    problems = [f"{wheel.name} {problem}" for problem in wheel_problems(wheel, names)]
    return problems + [f"{source.name} {problem}" for problem in source_problems(source, names)]


if __name__ == "__main__":
    if wrong := main(Path(sys.argv[1])):
        sys.exit("\n".join(wrong))
