"""Nothing stands under its name before it is whole."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support import refused

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic


def left(folder) -> list[str]:
    """What stands in a folder, sums apart."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".sha256")


@pytest.mark.parametrize("inside", ["", "deep/file"])
def test_a_file_or_a_folder_appears_when_the_block_ends(tmp_path, inside):
    path = tmp_path / "new" / "a"
    with atomic(path) as temporary:
        (temporary / inside).parent.mkdir(parents=True, exist_ok=True)
        (temporary / inside).write_text("whole")
        assert temporary.parent == path.parent and not path.exists()
    assert (path / inside).read_text() == "whole"
    assert left(path.parent) == ["a"]


def test_the_old_one_stands_until_the_new_one_is_whole(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "part").write_text("old")
    with atomic(tmp_path / "a.txt") as file, atomic(tmp_path / "b") as folder:
        file.write_text("new")
        folder.mkdir()
        (folder / "part").write_text("new")
        assert (tmp_path / "a.txt").read_text() == (tmp_path / "b" / "part").read_text() == "old"
    assert (tmp_path / "a.txt").read_text() == (tmp_path / "b" / "part").read_text() == "new"
    assert left(tmp_path) == ["a.txt", "b"]


def test_an_old_folder_comes_back_if_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "part").write_text("old")
    replace = Path.replace

    def refuse(path, target):
        if target == tmp_path / "a":
            raise OSError(5, "Input/output error", str(path))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", refuse)
    with refused("a cannot be written: Input/output error"), atomic(tmp_path / "a") as folder:
        folder.mkdir()
        (folder / "part").write_text("new")
    assert (tmp_path / "a" / "part").read_text() == "old"
    assert left(tmp_path) == ["a"]


def test_a_folder_that_holds_anything_else_is_not_replaced(tmp_path):
    (tmp_path / "thesis").touch()
    with refused(r"holds other files \(thesis\): name another folder"), atomic(tmp_path) as folder:
        folder.mkdir()
        (folder / "part").touch()
    assert left(tmp_path) == ["thesis"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, UserError])
@pytest.mark.parametrize("folder", [False, True])
def test_a_failure_leaves_the_old_one_and_nothing_else(tmp_path, error, folder):
    (tmp_path / "a").write_text("old")
    with pytest.raises(error, match="mine"), atomic(tmp_path / "a") as temporary:
        if folder:
            temporary.mkdir()
        (temporary / "file" if folder else temporary).write_text("half")
        raise error("mine")
    assert left(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_killed_process_leaves_nothing_under_the_name(tmp_path):
    script = "import os, signal, sys\nfrom ffkv.base.files.atomic import atomic\nwith atomic(sys.argv[1]) as temporary:\n    temporary.write_text('half')\n    os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "a.txt")])
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "a.txt").exists()
    with atomic(tmp_path / "a.txt") as temporary:
        temporary.write_text("whole")
    assert (tmp_path / "a.txt").read_text() == "whole"


def test_what_dead_processes_of_this_machine_left_is_swept(tmp_path):
    """Also inside of leftovers: a step that wrote an HDF5 file under the temporary name of a larger output leaves such a name."""
    host, dead = socket.gethostname().partition(".")[0], subprocess.Popen(["true"])
    dead.wait()
    mine = f".a.h5.{host}.{dead.pid}.partial"
    kept = [
        f".a.h5.{host}.{os.getppid()}.partial",
        f".a.h5.other.{dead.pid}.partial",
        f".b.h5.{host}.{dead.pid}.partial",
    ]
    for name in kept:
        (tmp_path / name).touch()
    (tmp_path / mine).mkdir()
    (tmp_path / mine / "part").touch()
    (tmp_path / f".{mine}.{host}.{dead.pid}.partial").touch()
    with atomic(tmp_path / "a.h5") as temporary:
        temporary.touch()
    assert left(tmp_path) == sorted([*kept, "a.h5"])


@pytest.mark.parametrize("inside", ["a.txt", "deeper/a.txt"])
def test_a_folder_that_cannot_be_made_is_the_persons_to_mend(tmp_path, inside):
    (tmp_path / "file").write_text("")
    message = r"a\.txt cannot be written: (Not a directory|File exists).*Check the folder's rights"
    with refused(message), atomic(tmp_path / "file" / inside) as temporary:
        temporary.write_text("never")
    assert left(tmp_path) == ["file"]


def test_a_full_disk_is_the_persons_to_mend(tmp_path):
    message = r"a\.txt does not fit: 0 bytes of it are written, and [\d,]+ bytes are free in .*Free some space"
    with refused(message), atomic(tmp_path / "a.txt") as temporary:
        temporary.symlink_to("/dev/full")
        temporary.write_text("too much")
    assert left(tmp_path) == []


def test_a_block_that_makes_nothing_is_refused(tmp_path):
    with refused(r"a\.txt cannot be written"), atomic(tmp_path / "a.txt"):
        pass
    assert left(tmp_path) == []


FULL = "does not fit: 4 bytes of it are written"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device"), FULL),
        (RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"), FULL),
        (ValueError("write failed: errno = 122, error message = 'Disk quota exceeded'"), FULL),
        (UserError("the input is damaged: Can't write data (No space left on device)"), FULL),
        (RuntimeError("I/O error: Input/output error (os error 5)"), "cannot be made: Input/output error"),
    ],
    ids=["the system's", "safetensors'", "HDF5's", "what was made of it", "a bad disk"],
)
def test_whatever_library_says_so_a_disk_is_told_with_path_and_size(tmp_path, error, message):
    with refused(rf"a\.bin {message}"), atomic(tmp_path / "a.bin") as part:
        part.write_text("half")
        raise error
    assert left(tmp_path) == []


def test_an_error_about_another_file_does_not_blame_the_output(tmp_path):
    (tmp_path / "input").mkdir()
    culprit = tmp_path / "input/data"
    with refused(rf"a\.txt cannot be made, because of {culprit}: "), atomic(tmp_path / "out/a.txt"):
        culprit.read_text()


@pytest.mark.parametrize("kind", ["pipe", "link", "link to nothing"])
def test_what_is_no_file_is_never_replaced(tmp_path, kind):
    path, other = tmp_path / "a", tmp_path / "other"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(other)
        if kind == "link":
            other.write_text("mine")
    before = path.lstat()
    with refused("is neither a file nor a folder, and ffkv does not replace it"), atomic(path) as part:
        part.write_text("new")
    assert path.lstat() == before
    assert kind != "link" or other.read_text() == "mine"


def test_the_root_is_no_output():
    with refused("is not a name for an output"), atomic("/"):
        pass


def test_a_name_that_no_file_can_have_is_told(tmp_path):
    with refused("cannot be written: File name too long"), atomic(tmp_path / ("a" * 253)) as part:
        part.write_text("x")


def test_a_sum_that_does_not_fit_leaves_nothing(tmp_path, monkeypatch):
    """The output would otherwise stay although its step fails."""
    write = Path.write_bytes

    def refuse(path, text, *arguments, **options):
        if "sha256" in path.name:
            raise OSError(28, "No space left on device")
        return write(path, text, *arguments, **options)

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with refused(r"a\.txt does not fit"), atomic(tmp_path / "a.txt") as part:
        part.write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_of_outputs_in_each_other_the_one_that_does_not_fit_is_named(tmp_path):
    """The model step writes a folder and a file together, and HDF5 files under their temporary names."""
    with (
        refused(rf"^{tmp_path}/values\.h5 does not fit: 4 bytes"),
        atomic(tmp_path / "model") as folder,
        atomic(tmp_path / "values.h5") as values,
        atomic(values) as part,
    ):
        folder.mkdir()
        part.write_text("half")
        raise OSError(28, "No space left on device")
    assert left(tmp_path) == []
