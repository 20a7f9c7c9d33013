"""As a program: appends to a journal while calls fail, each once; prints what went wrong as JSON. Needs `library.c` preloaded."""

import json
import os
import sys
from pathlib import Path

from faults.injector import FAULTS, KILL, SHORT, Injector, tells

from ffkv.base.errors import UserError
from ffkv.base.files.journal import Entry, append_shared, read_shared


class Said(Entry):
    """An entry."""

    words: str


def append(folder: Path, words: str) -> None:
    """Appends an entry of one writer."""
    append_shared(folder, "ada", Said(identity={}, words=words))


def attempt(injector: Injector, folder: Path, fault, number: int) -> int:
    """In a fork: two entries, of which the second meets the fault, and a third. Returns how many calls counted."""
    append(folder, "first")
    injector.arm(folder, fault, number)
    try:
        append(folder, "second")
        said = None
    except UserError as error:
        said = str(error)
    calls, failed = injector.disarm()
    append(folder, "third")
    (folder.parent / "said").write_text(json.dumps([said, failed, calls]))
    return calls


def main() -> None:
    """Tries every call of every fault."""
    injector, place = Injector(sys.argv[1]), Path(sys.argv[2])
    for name, fault in FAULTS.items():
        number, calls = 0, 0
        while number <= calls:
            folder = place / f"{name} {number}" / "journals"
            folder.mkdir(parents=True)
            child = os.fork()
            if child == 0:
                attempt(injector, folder, fault, number)
                os._exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            injector.disarm()
            killed = fault.how == KILL and number
            said, failed, count = (None, "kill", 0) if killed else json.loads((folder.parent / "said").read_text())
            calls = calls if number else count
            append(folder, "last")  # in a file of its own: this is another process
            words = [entry.words for _, entry in read_shared(folder, Said)[0]]
            kept = [word for word in words if word != "second"]
            wrong = ["ended"] if code != (-9 if killed else 0) else []
            wrong += ["lost"] if kept != (["first", "last"] if killed else ["first", "third", "last"]) else []
            wrong += ["lost without a word"] if said is None and not killed and "second" not in words else []
            wrong += ["no cause"] if said is not None and not tells(said, fault.error) else []
            wrong += ["a short write is no failure"] if fault.how == SHORT and said is not None else []
            wrong += ["twice"] if words.count("second") > 1 else []
            print(json.dumps({"fault": name, "number": number, "call": failed, "wrong": wrong, "said": said}))
            number += 1


if __name__ == "__main__":
    main()
