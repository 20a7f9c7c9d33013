"""Files that run code when a careless reader opens them: none is run, and a message says why the file is refused."""

import pickle
import shutil
from pathlib import Path

import pytest
import torch
from support import edit_json, refused

from ffkv.base.errors import UserError
from ffkv.base.settings import Corpus, Model
from ffkv.corpus.sources import read_documents
from ffkv.model.checkpoint.load import load_checkpoint
from ffkv.model.checkpoint.tokenizer import load_tokenizer

pytestmark = pytest.mark.usefixtures("own_cache")


class Payload:
    """Makes a file where it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


@pytest.fixture
def marker(tmp_path):
    """The file that only run code makes. A test that leaves it there fails."""
    path = tmp_path / "pwned"
    pickle.loads(pickle.dumps(Payload(path))).close()
    assert path.exists()  # so the payload works
    path.unlink()
    yield path
    assert not path.exists()


@pytest.fixture
def checkpoint(checkpoints, tmp_path):
    """A copy of a checkpoint to be spoiled."""
    return shutil.copytree(checkpoints("gpt2"), tmp_path / "checkpoint")


def code(marker: Path) -> str:
    return f"open({str(marker)!r}, 'w')\nclass Model: pass\nclass Tokenizer: pass\nclass Config: pass\n"


def saved_as(form: str, content: object, path: Path) -> None:
    if form == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")


FORMS = ["zip", "old", "pickle"]


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_pickled_weights_run_no_code(checkpoint, marker, form, name):
    weights = load_checkpoint(Model(checkpoint=str(checkpoint))).state_dict()
    (checkpoint / "model.safetensors").unlink()
    saved_as(form, {**weights, "payload": Payload(marker)}, checkpoint / name)
    with refused("cannot be loaded as a causal language model: ") as caught:
        load_checkpoint(Model(checkpoint=str(checkpoint)))
    assert str(checkpoint) in str(caught.value)
    assert name == "model.safetensors" or "names code, and ffkv runs none" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_plain_pickled_weights_are_read(checkpoint):
    weights = load_checkpoint(Model(checkpoint=str(checkpoint))).state_dict()
    (checkpoint / "model.safetensors").unlink()
    torch.save(weights, checkpoint / "pytorch_model.bin")
    again = load_checkpoint(Model(checkpoint=str(checkpoint))).state_dict()
    assert all(torch.equal(weights[name], again[name]) for name in weights)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", ["args", "model", "more"])
def test_a_fairseq_checkpoint_runs_no_code(tmp_path, marker, form, place):
    folder = tmp_path / "fairseq"
    folder.mkdir()
    (folder / "dict.txt").write_text("the 10\ncat 5\n")
    saved_as(form, {"args": None, "model": {}, place: Payload(marker)}, folder / "model.pt")
    with refused(r"model\.pt (needs \S+ to be read: ffkv runs no code|cannot be read)"):
        load_checkpoint(Model(checkpoint=str(folder)))


def test_a_fairseq_dictionary_that_is_a_pickle_is_refused(tmp_path, marker):
    (tmp_path / "model.pt").write_bytes(b"")
    (tmp_path / "dict.txt").write_bytes(pickle.dumps(Payload(marker)))
    with refused(r"dict\.txt"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "vocab.json", "tokenizer.model"])
def test_a_tokenizer_runs_no_code(checkpoint, marker, name):
    if name in ("vocab.json", "tokenizer.model"):
        (checkpoint / "tokenizer.json").unlink()
        (checkpoint / "merges.txt").write_text("#version: 0.2\n")
    (checkpoint / name).write_bytes(pickle.dumps(Payload(marker)))
    with refused(r"The tokenizer of .* cannot be loaded: "):
        load_tokenizer(checkpoint)


@pytest.mark.parametrize("kind", ["gpt2", "never-heard-of"])
def test_model_code_of_a_checkpoint_is_not_imported_unless_trusted(checkpoint, marker, kind):
    (checkpoint / "modeling_own.py").write_text(code(marker))
    own = {"AutoConfig": "modeling_own.Config", "AutoModelForCausalLM": "modeling_own.Model"}
    edit_json(checkpoint / "config.json", auto_map=own, model_type=kind)
    if kind == "gpt2":  # the library's own code reads it
        load_checkpoint(Model(checkpoint=str(checkpoint)))
        return
    with refused("trust_remote_code"):
        load_checkpoint(Model(checkpoint=str(checkpoint)))


def test_tokenizer_code_of_a_checkpoint_is_not_imported_unless_trusted(checkpoint, marker):
    (checkpoint / "tokenizing_own.py").write_text(code(marker))
    own = {"AutoTokenizer": [None, "tokenizing_own.Tokenizer"]}
    edit_json(checkpoint / "tokenizer_config.json", auto_map=own, tokenizer_class="Tokenizer")
    try:
        load_tokenizer(checkpoint)
    except UserError as error:
        assert "trust_remote_code" in str(error)


def test_code_is_trusted_only_where_the_settings_say_so():
    assert Model().trust_remote_code is False


@pytest.mark.parametrize("name", ["data.pkl", "data.py", "train.npy"])
def test_a_folder_given_as_a_data_set_runs_no_code(tmp_path, marker, name):
    folder = tmp_path / "data"
    folder.mkdir()
    content = code(marker).encode() if name == "data.py" else pickle.dumps(Payload(marker))
    (folder / name).write_bytes(content)
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  data_files: {name}\n---\n")
    with refused(r" cannot be read: "):
        list(read_documents(Corpus(dataset=str(folder)), "train"))
    with pytest.raises(UserError):
        list(read_documents(Corpus(dataset="files", train=[str(folder / name)]), "train"))


def test_a_data_sets_script_beside_its_data_is_not_run(tmp_path, marker):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "data.py").write_text(code(marker))
    (folder / "train.jsonl").write_text('{"text": "one"}\n')
    try:
        assert [document.text for document in read_documents(Corpus(dataset=str(folder)), "train")] == ["one"]
    except UserError as error:
        assert "script" in str(error)
