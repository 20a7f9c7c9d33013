"""The fault loop: runs a command again and again, and another call of it fails each time.

As a program, it is one process that has the libraries of all steps. Its forks run the commands. It is started with the
library of `library.c` preloaded, gets a job as JSON on its input, and prints what went wrong, and a count, as JSON.
"""

import contextlib
import gc
import importlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

from faults.injector import COUNTED, FAULTS, KILL, SHORT, TAKE, Fault, Injector, draw, places_of, tells

from ffkv.base.files.atomic import PARTIAL

# With less memory torch multiplies in another order, zlib does not pack a chunk, and HDF5 writes it later.
FRUGAL = ("libtorch", "libz", "libhdf5")
# The end of the name of a journal: the host, the process and a random part, or kept answers.
JOURNAL = re.compile(r"(?:\.[^.]+\.\d+\.[0-9a-f]{8}|(?<=/answers))\.jsonl$")
LONGEST = 900  # seconds of a command without a fault
SLOWER = 5  # times as long one with a fault may take, and a minute more: others use the processor, too
LONGEST_WITHOUT_MEMORY = 30  # libraries wait for ever for a thread that could not start


class Done(NamedTuple):
    """How a command ended."""

    code: int
    said: str
    calls: int  # how many calls counted
    failed: str  # the call that was made to fail


class Loop:
    """A command in a folder.

    base: the files before, by path, with their state. expected: what it makes of them, by path, as bytes. removed: those that
    it removes. places: the numbers of the calls that count for each of `FAULTS`, those of one function on one path together.
    """

    def __init__(self, library: str, place: Path, command: str):
        self.injector, self.place, self.command = Injector(library), place, shlex.split(command)
        self.log = place.parent / f"{place.name}.log"
        self.pristine = place.parent / f"{place.name}.pristine"
        (place / "tmp").mkdir(exist_ok=True)
        shutil.copytree(place, self.pristine, symlinks=True)
        self.base = states(place)
        self.longest, begin = float(LONGEST), time.monotonic()
        done = self.run(COUNTED)
        assert done.code == 0, f"{command}: {done}"
        self.longest = 60 + SLOWER * (time.monotonic() - begin)
        self.expected, self.answer = self.made(), done.said
        self.removed = [path for path in self.base if not os.path.lexists(place / path)]
        self.places = {name: places_of(self.calls, fault) for name, fault in FAULTS.items()}
        self.restore()

    def run(self, fault: Fault | None = None, number: int = 0) -> Done:
        """Runs the command in a fork. number: which call fails, from 1; 0 for none."""
        self.injector.arm(self.place, fault, number)
        child = os.fork()
        if child == 0:
            act(self.command, self.place, self.log)
        begin, longest = time.monotonic(), self.longest
        if fault and fault.kinds == TAKE:
            longest = LONGEST_WITHOUT_MEMORY
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            time.sleep(0.001)
            if time.monotonic() - begin > longest:
                os.kill(child, signal.SIGALRM)
        self.calls = [] if number else self.injector.calls()
        calls, failed = self.injector.disarm()
        return Done(os.waitstatus_to_exitcode(ended[1]), self.log.read_text(errors="replace"), calls, failed)

    def made(self) -> dict[str, bytes]:
        """What there is beside the files before, and which of those changed. Of journals what all processes say together."""
        found = {}
        for path, state in states(self.place).items():
            if self.base.get(path) != state:
                content, name = (self.place / path).read_bytes(), JOURNAL.sub(".journal", path)
                found[name] = content if name == path else said_in(content + b"\n" + found.get(name, b""))
        return found

    def right(self, path: str) -> bytes | None:
        """What a file holds without a fault. What could not be read is made again, with the bytes that were there before."""
        if path in self.expected or path not in self.base:
            return self.expected.get(path)
        return (self.pristine / path).read_bytes()

    def stays(self) -> list[str]:
        """What is to be removed and is still there."""
        return [path for path in self.removed if os.path.lexists(self.place / path)]

    def restore(self) -> None:
        """Brings the folder back to what it was."""
        now = states(self.place)
        for path in now.keys() - self.base.keys():
            (self.place / path).unlink()
        for path, state in self.base.items():
            if now.get(path) != state:
                (self.place / path).unlink(missing_ok=True)
                (self.place / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.pristine / path, self.place / path)
                self.base[path] = state_of(self.place / path)
        for folder, _, _ in os.walk(self.place, topdown=False):
            if not (self.pristine / Path(folder).relative_to(self.place)).exists():
                Path(folder).rmdir()

    def problems(self, fault: Fault, number: int) -> tuple[Done, list[str]]:
        """What is wrong after a fault, and after the command was started again."""
        done = self.run(fault, number)
        made, found = self.made(), []
        # Of what a defect says about itself the first part, which is the traceback.
        said = [content.decode().rpartition("\n\n")[0] for path, content in made.items() if "ffkv-defect" in path]
        done = done._replace(said="\n".join([done.said, *said]))
        killed = fault.how == KILL or (fault.kinds == TAKE and ends_process(done))
        if fault.how == KILL:
            found += [f"ended with {done.code}"] if done.code != -signal.SIGKILL else []
        elif killed:
            pass
        else:
            found += self.problems_told(done, fault, self.expected.keys() - made.keys())
        # What is in the way of a removal leaves what was to go, for the next start: ".old." is a folder that has a successor.
        # Of a name below an open folder only a removal of folders asks: fstatat.
        may_stay = killed or fault == FAULTS["dead disk"] or done.failed.startswith(("unlink", "rmdir", "fstatat"))
        may_stay = may_stay or ".old." in done.failed or re.search(r"/tmp/tmp\w+$", done.failed) is not None
        for path, content in made.items():
            if path in self.expected or not unfinished(path):
                # What is beside an output need not be whole.
                other = fault.kinds == TAKE and done.code == 0 and any(name in done.failed for name in FRUGAL)
                whole = content == self.right(path) or other or beside(path)
                if path.endswith(".journal"):  # of a journal as much is there as was written
                    whole = {*content.splitlines()} <= {*self.expected.get(path, b"").splitlines()}
                found += [] if whole else [f"not whole: {path}"]
            elif not may_stay:
                found.append(f"left over: {path}")
        if not killed:
            lost = [path for path in self.base if not beside(path) and not (self.place / path).exists()]
            found += [f"lost: {path}" for path in lost if path not in self.removed]
        if made and done.code:
            again = self.run()
            if again.code:
                found.append(f"the same command ends with {again.code}: {again.said.strip()[-500:]}")
            else:
                now = self.made()
                found += [
                    f"afterwards other bytes: {path}"
                    for path in sorted(now.keys() | self.expected.keys())
                    if now.get(path) != self.expected.get(path) and not optional(path)
                ]
                found += [f"still there afterwards: {path}" for path in self.stays()]
        self.restore()
        return done, found

    def problems_told(self, done: Done, fault: Fault, missing: set[str]) -> list[str]:
        """What is wrong with the end of a command and with what it said. missing: outputs that are not there."""
        if done.code == 0:
            found = [f"it succeeded without {path}" for path in missing if not optional(path)]
            found += [f"it succeeded and left {path}" for path in self.stays()]
            asked = all(map(optional, self.expected))
            return [*found, "another answer"] if asked and done.said != self.answer else found
        if fault.how == SHORT:
            return ["a short read or write is no failure"]
        found = [f"exit code {done.code}"] if done.code not in (1, 2) else []
        told = "Exception ignored in" in done.said  # where a library gives up what is in the way of its own removal
        found += ["a traceback"] if "Traceback" in done.said and not told else []
        return found + (["no cause"] if not tells(done.said, fault.error) else [])


def ends_process(done: Done) -> bool:
    """Whether a library, without memory, ended the process, waited for ever, or lost its own error."""
    lost = any(words in done.said for words in ("SystemError", "No cipher can be selected"))
    return done.code < 0 or done.code == 127 or lost or done.said.endswith(("IndexError", "SSLError"))


def said_in(lines: bytes) -> bytes:
    """What journals say, without the times, each once, in the order of the words. Lines that are not whole say nothing."""
    said = set()
    for line in lines.splitlines():
        with contextlib.suppress(ValueError):
            said.add(json.dumps({**json.loads(line), "time": ""}, sort_keys=True))
    return "".join(f"{entry}\n" for entry in sorted(said)).encode()


def unfinished(path: str) -> bool:
    """Whether a path is of something unfinished, or of a temporary file."""
    return path.startswith("tmp/") or any(PARTIAL.fullmatch(part) for part in Path(path).parts)


def optional(path: str) -> bool:
    """Whether a path is of something that only saves time: a temporary file, of a cache, of patterns that were sought on request."""
    return path.startswith(("tmp/", "cache/")) or ".sought/" in path


def beside(path: str) -> bool:
    """Whether a path is no output: a checksum, a saved state, of the hub's cache, or what says that an export is not whole."""
    parts = Path(path).parts
    return (
        parts[0] == "cache"
        or parts[-1] == "ffkv-export.json"
        or any(part.startswith(".") and not part.endswith(".sought") for part in parts)
    )


def states(place: Path) -> dict[str, tuple]:
    """The state of each file below a folder, by its path from there."""
    return {
        str(path.relative_to(place)): state_of(path) for path in place.rglob("*") if path.is_symlink() or path.is_file()
    }


def state_of(path: Path) -> tuple:
    """Inode, size and time of a file."""
    entry = path.lstat()
    return entry.st_ino, entry.st_size, entry.st_mtime_ns


def act(command: list[str], place: Path, log: Path) -> None:
    """In the fork: what the command does."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(place)
    import tempfile

    os.environ["TMPDIR"] = tempfile.tempdir = str(place / "tmp")
    sys.argv = command
    from ffkv.cli import main

    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else ended.code is not None
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 99
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Runs the loop over the jobs on the input: names, folders and commands."""
    from forks import modules

    from ffkv.base.process.runtime import configure

    configure(1)
    from ffkv.workflow.jobs import import_libraries

    import_libraries()
    for module in [*modules(), "ffkv.run.report.step"]:
        importlib.import_module(module)
    gc.freeze()  # a fork does not touch, and so copy, what is there already
    library, cases, seed, only = sys.argv[1:]
    for name, place, command in json.load(sys.stdin):
        begin = time.monotonic()
        loop = Loop(library, Path(place), command)
        kind, _, which = only.partition(":")
        kinds = [kind] if kind else [fault for fault in FAULTS if fault != "allocation" or cases in ("0", "places")]
        of_kind = {fault: loop.places[fault] for fault in kinds}
        chosen = [(kind, int(which))] if which else draw(of_kind, cases, random.Random(f"{seed} {name}"))
        for kind, number in chosen:
            done, found = loop.problems(FAULTS[kind], number)
            about = {"job": name, "fault": kind, "number": number, "call": done.failed}
            for problem in found:
                print(json.dumps({**about, "problem": problem, "said": done.said[-3000:]}), flush=True)
        counts = {"calls": sum(len(each) for groups in loop.places.values() for each in groups), "tried": len(chosen)}
        print(json.dumps({"job": name, **counts, "seconds": round(time.monotonic() - begin, 1)}), flush=True)


if __name__ == "__main__":
    main()
