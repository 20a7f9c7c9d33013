"""Any number of processes writes the same bytes."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support import tries

from ffkv.base.errors import UserError
from ffkv.base.settings import Corpus
from ffkv.corpus import encode
from ffkv.corpus.step import encode_corpus

WORDS = ["the cat", "sat.", "The mat!", "\n", "  ", "é😀", "on", "a b c. A b d.", "<|bos|>", "\ufffd"]


def made(model: Path, folder: Path, processes: int, **settings) -> bytes:
    """The bytes of the file that so many processes write."""
    corpus = Corpus(dataset="files", train=[str(folder / "a.jsonl")], validation_share=0.2, **settings)
    encode_corpus(model, "train", corpus, folder / "train.h5", processes)
    return (folder / "train.h5").read_bytes()


@pytest.mark.slow
@given(
    st.lists(st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join), min_size=30, max_size=60),
    st.sampled_from(["sentence", "line", "document"]),
    st.sampled_from(["collapse", "keep"]),
    st.sampled_from([0, 7, 20]),
    st.booleans(),
    st.integers(1, 5),
)
@hypothesis_settings(max_examples=tries(8))
def test_processes_change_no_byte(byte_model, tmp_path_factory, texts, splitter, white_space, limit, deduplicate, size):
    folder = tmp_path_factory.mktemp("processes")
    texts = [*texts, "the cat sat. The cat sat. On the mat.", "One more. The cat sat on a mat."] * 2
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    settings = {"splitter": splitter, "white_space": white_space, "limit": limit, "deduplicate": deduplicate}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "DOCUMENTS_PER_CHUNK", size)
        try:
            alone = made(byte_model, folder, 1, **settings)
        except UserError as error:  # the first documents may hold too little
            assert "at least 2 are needed" in str(error)
            return
        assert {made(byte_model, folder, processes, **settings) for processes in (2, 3)} == {alone}
        patch.setattr(encode, "DOCUMENTS_PER_CHUNK", 1000)
        assert made(byte_model, folder, 2, **settings) == alone


def test_progress_tells_documents_sentences_and_the_time_left(byte_model, tmp_path, capfd):
    lines = "".join(json.dumps({"text": f"Document {number}. And more."}) + "\n" for number in range(80))
    (tmp_path / "a.jsonl").write_text(lines)
    made(byte_model, tmp_path, 2, limit=40)
    told = capfd.readouterr().err
    assert "train: 100%" in told and "40.0/40.0" in told and "documents/s" in told and "80 sentences" in told
    made(byte_model, tmp_path, 1)
    assert "%" not in capfd.readouterr().err  # nobody knows how many there are


def test_a_killed_process_leaves_no_file(byte_model, tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "The cat sat. " * 20_000}) + "\n")
    earlier = set(psutil.Process().children())  # such as the tracker of multiprocessing, which another test started

    def kill():
        while len(processes := set(psutil.Process().children()) - earlier) < 2:
            time.sleep(0.01)
        for process in processes:
            os.kill(process.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(UserError, match="One of the processes that encode documents was killed by SIGKILL"):
        made(byte_model, tmp_path, 2)
    thread.join()
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
