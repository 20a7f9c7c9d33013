"""What is said of a failure: a full disk, too little memory, what the system denies, and an exception that nobody foresaw (one sentence, a file for the developers, exit code 70)."""

import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from support import refused

from ffkv import cli
from ffkv.base import fault
from ffkv.base.doors import INSIDE
from ffkv.base.errors import UserError
from ffkv.base.fault import explain, free_memory, is_out_of_memory, out_of_memory, temporary_folders
from ffkv.base.process import runtime
from ffkv.model.checkpoint.load import load
from ffkv.model.tap.hooks import forward

SECRET = "a sentence of the corpus"


class Panic(BaseException):
    """What libraries in Rust raise where their own code fails is no `Exception`."""


def run_main(monkeypatch, error) -> int:
    def command(standalone_mode):
        raise error

    monkeypatch.setattr(cli, "ffkv", command)
    monkeypatch.setattr(cli, "end_in_good_order", lambda: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def test_a_defect_is_one_sentence_and_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["ffkv", "triggers", "--per-key", "5"])
    assert run_main(monkeypatch, IndexError(SECRET)) == 70
    said = capsys.readouterr().err
    assert "This is a defect of ffkv, not of your files: IndexError." in said
    assert "Traceback (most recent" not in said
    text = Path(re.search(r"are in (\S+)\.", said)[1]).read_text()
    assert "command: ffkv triggers --per-key 5" in text
    assert "raise error" in text
    assert "torch " in text
    assert SECRET not in said + text


def test_without_room_for_the_file_the_traceback_is_printed(monkeypatch, capsys):
    monkeypatch.setattr("ffkv.base.fault.write_defect", lambda error: (_ for _ in ()).throw(OSError("full")))
    assert run_main(monkeypatch, IndexError("x")) == 70
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device"), "There is no space left on a disk"),
        (MemoryError("Unable to allocate 9 GiB"), "The memory does not suffice"),
        (MemoryError(), "The memory does not suffice. Now "),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "The memory does not suffice"),
        (OSError("Can't write data (memory allocation failed for chunk)"), "The memory does not suffice"),  # HDF5
        (OSError("Couldn't serialize thrift: std::bad_alloc"), "The memory does not suffice"),  # parquet
        (Panic("Regex search error: fail to memory allocation"), "The memory does not suffice"),
        (
            RuntimeError("unable to mmap 8 bytes from file <a>: Cannot allocate memory (12)"),
            "The memory does not suffice",
        ),
        (OSError(24, "Too many open files"), "The system says: Too many open files"),
        (RuntimeError("unable to open file <a>: Too many open files (24)"), "The system says: Too many open files"),
        (RuntimeError("I/O error: Input/output error (os error 5)"), "The system says: Input/output error"),
    ],
)
def test_what_the_system_denies_is_no_defect(error, message):
    told, code = explain(error)
    assert code == 2
    assert told.startswith(message)


def test_a_panic_of_a_library_in_rust_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run_main(monkeypatch, Panic("index out of bounds")) == 70
    said = capsys.readouterr().err
    assert "This is a defect of ffkv, not of your files: Panic." in said and "Traceback" not in said


def test_ctrl_c_is_no_defect(monkeypatch, capsys):
    assert run_main(monkeypatch, KeyboardInterrupt()) == 1
    assert capsys.readouterr().err.endswith("stopped.\n")


def test_a_wrong_option_is_told_as_before(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ffkv", "triggers", "--per-keys", "5"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("Usage: ")
    assert "No such option" in said


def test_a_disk_with_room_passes_and_what_is_not_there_is_not_asked(tmp_path):
    fault.check_disk([tmp_path, tmp_path / "none"])


def test_a_full_disk_is_named_once(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    monkeypatch.setattr(fault, "FULL", float("inf"))
    assert fault.full([tmp_path, tmp_path / "a"]) == [tmp_path]
    with refused(f"The disk of {tmp_path} is full. Free some space, then start the same command again"):
        fault.check_disk([tmp_path, tmp_path / "a"])


def test_a_file_system_that_has_no_bytes_is_not_called_full():
    assert shutil.disk_usage("/proc").free == 0
    assert fault.full([Path("/proc/self")]) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(fault.os, "access", lambda folder, mode: folder != tmp_path / "a")
    (tmp_path / "a").mkdir()
    with refused(f"{tmp_path}/a cannot be written: its disk is read-only, or it belongs to somebody else"):
        fault.check_disk([tmp_path, tmp_path / "a"])


def test_folders_of_temporary_files_that_the_environment_names_are_checked_too(monkeypatch, tmp_path):
    """Python takes another folder than one that is full; the solver of Snakemake does not."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert tmp_path in temporary_folders()


SETTINGS = ("model.dtype", "batches.tokens", "model.max_memory", "model.gpus", "model.device")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate"
        ),
        MemoryError(),
    ],
)
def test_a_pass_without_memory_is_a_message(proven, monkeypatch, error):
    model = load(proven("gpt2"), "cpu").model

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(model.transformer.h[1].mlp, "forward", fail)
    with refused("The memory does not suffice") as caught:
        forward(model, torch.ones(1, 3, dtype=torch.long))
    assert all(name in str(caught.value) for name in SETTINGS)
    assert "The weights alone take 0.0 GiB" in str(caught.value) and "GiB of the machine's memory is free" in str(
        caught.value
    )
    assert explain(error)[1] == 2 and "model.max_memory" in explain(error)[0]


def test_a_gpu_that_fails_is_no_defect_of_ffkv():
    for error in (
        torch.AcceleratorError("CUDA error: unspecified launch failure\nCUDA kernel errors might be reported later."),
        RuntimeError("CUDA error: device not ready"),
        RuntimeError("CUDA driver error: no device"),
    ):
        told, code = explain(error)
        assert code == 2 and told.startswith("The GPU failed (CUDA ") and "model.device: cpu" in told


def test_another_error_stays_what_it_is(proven, monkeypatch):
    model = load(proven("gpt2"), "cpu").model
    with pytest.raises(IndexError):
        forward(model, torch.full((1, 3), 1000))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


def test_what_each_gpu_has_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (2**30, 24 * 2**30))
    said = str(out_of_memory(torch.OutOfMemoryError("CUDA out of memory."), 16 * 2**30))
    assert "The weights alone take 16.0 GiB. Now GPU 0 has 24.0 GiB, 1.0 GiB free." in said


def test_two_processes_have_different_gpus(tmp_path, monkeypatch):
    """A lock is of an open file: a second list of own GPUs stands for a second process."""
    monkeypatch.setattr(runtime.tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    owned = []
    for expected in ("cuda:0", "cuda:1", "cuda"):  # the third finds none and shares
        monkeypatch.setattr(runtime, "_own_gpu", [])
        assert runtime.own_gpu(2) == expected
        owned.append(runtime._own_gpu)
    assert runtime.own_gpu(1) == "cuda"
    for _, file in (lock for locks in owned for lock in locks):
        file.close()


def test_gpus_are_counted_without_torch(monkeypatch):
    for visible, count in {"0,1": 2, "GPU-8f": 1, "": 0, "-1": 0}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert runtime.count_gpus() == count


def test_the_limit_of_a_control_group_counts(tmp_path):
    for name, text in {"max": "6000000", "current": "5000000", "stat": "anon 1\ninactive_file 500000"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert free_memory(tmp_path) == 1_500_000
    (tmp_path / "memory.max").write_text("max")
    assert free_memory(tmp_path) > 1_500_000


def test_without_a_temporary_folder_the_message_names_the_remedy(monkeypatch):
    """This happens when the disk of temporary files is full."""

    def fail():
        raise FileNotFoundError(2, "No usable temporary directory")

    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._get_default_tempdir", fail)
    with refused("No folder for temporary files can be written .*TMPDIR"):
        fault.temporary_folder()


def test_a_sentence_has_no_traceback_of_another_process():
    """A fork notes its traceback on what it raises; a package of others is noted, too, and told."""
    error = UserError("The text is malformed.")
    error.add_note("In another process:\nTraceback (most recent call last): ...")
    assert explain(error) == ("The text is malformed.", 2)
    error.add_note(f"{INSIDE}ffkv-toy 1.0")
    assert explain(error) == ("The text is malformed. (Inside of the package ffkv-toy 1.0.)", 2)
