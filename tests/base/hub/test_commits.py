"""One commit for a whole run: what is resolved, written into files, shown, and read again after a push."""

import json
import re
from pathlib import Path

import h5py
import pytest
from click.testing import CliRunner

from ffkv.base.errors import UserError
from ffkv.base.settings import Model
from ffkv.cli import ffkv
from ffkv.model.step import prove
from tests.base.hub.contents import json_dataset, sentences

pytestmark = pytest.mark.slow

CONFIGURATION = """
from transformers import LlamaConfig
class SpecialConfig(LlamaConfig):
    model_type = "special"
"""
MODELING = """
from transformers import LlamaForCausalLM
from .configuration_special import SpecialConfig
class SpecialForCausalLM(LlamaForCausalLM):
    config_class = SpecialConfig
    number = {number}
"""
CODE = {
    "AutoConfig": "configuration_special.SpecialConfig",
    "AutoModelForCausalLM": "modeling_special.SpecialForCausalLM",
}


def with_code(folder: Path, elsewhere: str = "") -> dict[str, bytes]:
    """The files of a model whose code lies in its own repository, or in another one."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    names = {key: f"{elsewhere}--{name}" if elsewhere else name for key, name in CODE.items()}
    changes = {"model_type": "special", "auto_map": names, "architectures": ["SpecialForCausalLM"]}
    return files | {"config.json": json.dumps(json.loads(files["config.json"]) | changes).encode()}


def code(number: int) -> dict[str, bytes]:
    """The Python files of a model's code."""
    return {
        "configuration_special.py": CONFIGURATION.encode(),
        "modeling_special.py": MODELING.format(number=number).encode(),
    }


RUN = """
from click.testing import CliRunner
from ffkv.cli import ffkv
def run(*arguments):
    done = CliRunner().invoke(ffkv, [str(one) for one in arguments], standalone_mode=False)
    assert done.exception is None, (arguments, done.output, repr(done.exception))
    return done.output
"""


@pytest.mark.parametrize(
    ("kind", "more", "told"),
    [
        ("model", [], "The model 'embedded' has no commit: it is not on the hub. Name another one."),
        ("dataset", [], "The data set 'embedded' has no commit"),
        ("dataset", ["--dataset", "embedded"], "'embedded' has no commit"),
    ],
)
def test_what_is_not_on_the_hub_is_not_asked_for(kind, more, told, tmp_path):
    asked = ["resolve-commit", "--kind", kind, "--output", str(tmp_path / "commit.json"), *more]
    with pytest.raises(UserError, match=re.escape(told)):
        CliRunner().invoke(ffkv, asked, standalone_mode=False, catch_exceptions=False)


def test_a_model_and_a_data_set_are_read_at_the_commit_that_was_resolved(hub, child, model_folders, tmp_path):
    """Resolved, pushed to, read: no file is of the new commits, and what was read says so. Later jobs ask nothing."""
    tiny, words = hub.model("someone/tiny"), hub.dataset("someone/words")
    first = tiny.push_folder(model_folders())
    old = words.push(json_dataset({"train": sentences(60), "validation": sentences(20, 60)}))
    tiny.tags["v1"] = first
    code_of_child = f"""{RUN}
from ffkv.base.hub.commit import find_move, read_commit, resolve_model
corpus = ["--dataset", "someone/words", "--validation", "validation"]
run("resolve-commit", "--kind", "model", "--checkpoint", "someone/tiny", "--output", "model.json")
run("resolve-commit", "--kind", "dataset", *corpus[:2], "--output", "dataset.json")
revisions = ["main", "v1", "{first}", "{first[:8]}"]
resolved = [resolve_model(Model(checkpoint="someone/tiny", revision=one)).commit for one in revisions]
moved = [find_move(read_commit(name)) for name in ("model.json", "dataset.json")]
over("push")
moved += [find_move(read_commit(name)) for name in ("model.json", "dataset.json")]
model = ["--checkpoint", "someone/tiny"]
run("model", *model, "--commit", "model.json", "--output", "run/model", "--output-values", "run/values.h5")
split = ["corpus", "--model", "run/model", *corpus]
for name in ("train", "validation"):
    run(*split, "--split", name, "--commit", "dataset.json", "--output", f"run/corpus/{{name}}.h5")
shown = run("inspect", *model)
over("clear")
from ffkv.model.checkpoint.load import load
from ffkv.model.head.head_file import load_head
load("run/model", "cpu")
load_head("run/model", "cpu")
run("triggers", "--model", "run/model", "--corpus", "run/corpus/train.h5", "--device", "cpu", "--output", "run/triggers.h5")
over("again")
# Another commit of the data set beside the first one, and commits of other settings.
from ffkv.run.results.run_files import RunFiles
from ffkv.model.anatomy import read_anatomy
from ffkv.branches.settings import Settings
def corpora():
    return RunFiles(Path("run"), Settings(), read_anatomy("run/model")).corpora
sources = [facts["source"] for facts in corpora().values()]
run(*split, "--split", "validation", "--output", "run/corpus/validation.h5")
from ffkv.base.hub.commit import check_commit
refusals = [
    attempt(corpora),
    attempt(check_commit, read_commit("model.json"), Model(checkpoint="someone/tiny", revision="v1")),
    attempt(check_commit, read_commit("dataset.json"), Model(checkpoint="someone/words")),
    attempt(read_commit, "missing.json"),
]
print(json.dumps([resolved, moved, shown, sources, [one["refusal"] for one in refusals]]))
"""
    (tmp_path / "run" / "corpus").mkdir(parents=True)

    def push() -> None:
        tiny.push_folder(model_folders(seed=1))
        words.push(json_dataset({"train": sentences(30, 300), "validation": sentences(20, 400)}))

    asked = []
    hub.when("/over/push", push)
    hub.when("/over/clear", hub.requests.clear)
    hub.when("/over/again", lambda: asked.extend(hub.requests[1:-1]))
    resolved, moved, shown, sources, refusals = child(code_of_child)
    latest, new = tiny.branches["main"], words.branches["main"]
    assert resolved == [first] * 4
    assert moved == ["", "", latest, new]
    assert f"revision main, commit {latest}" in shown
    assert not asked
    assert sources == [f"revision main, commit {old}"] * 2
    assert (
        f"of different versions of the data set (revision main, commit {old}; revision main, commit {new})"
        in refusals[0]
    )
    assert all("ffkv resolve-commit" in refusal for refusal in refusals[1:]), refusals
    anatomy = json.loads((tmp_path / "run/model/anatomy.json").read_text())
    assert (anatomy["revision"], anatomy["commit"]) == ("main", first)
    proven = prove(Model(checkpoint=str(model_folders()))).anatomy
    assert anatomy["model_hash"] == proven.model_hash
    for name in ("values.h5", "triggers.h5", "corpus/train.h5"):
        with h5py.File(tmp_path / "run" / name) as file:
            of_model = (
                ("model_revision", "model_commit") if "corpus" not in name else ("dataset_revision", "dataset_commit")
            )
            assert [file.attrs[key] for key in of_model] == ["main", old if "corpus" in name else first], name
    with h5py.File(tmp_path / "run/corpus/train.h5") as file:
        assert len(file["sentence_offset"]) == 60  # of 60 sentences, the last repeats the first


def test_forms_of_the_weights_give_one_hash_and_duplicates_stay_where_they_are(hub, child, model_folders):
    folder = model_folders()
    own = {path.name: path.read_bytes() for path in folder.iterdir()}
    copies = {
        "original/consolidated.00.pth": bytes(9_000),
        "consolidated.safetensors": bytes(9_000),
        "pytorch_model.bin": bytes(9_000),
    }
    copies |= {"onnx/model.onnx": bytes(9_000), "model.fp16.safetensors": bytes(9_000), "tf_model.h5": bytes(9_000)}
    hub.model("someone/plain").push(own | copies)
    hub.model("someone/sharded").push_folder(model_folders(form="sharded"))
    hub.model("someone/bin").push_folder(model_folders(form="bin"))
    names = ["someone/plain", "someone/sharded", "someone/bin", str(folder)]
    code_of_child = f"""
from ffkv.model.checkpoint.weights import weights_hash
from ffkv.model.checkpoint.load import load_checkpoint
names = {names}
def read(name):
    return weights_hash(load_checkpoint(Model(checkpoint=name)))
first = [attempt(read, name) for name in names]
over("clear")
again = [attempt(read, name) for name in names]
hub = os.environ["HF_ENDPOINT"]
over("gone")
gone = [attempt(read, name) for name in names]
start = time.monotonic()
offline()
print(json.dumps([first, again, gone, [attempt(read, name) for name in names]]))
"""
    hub.when("/over/clear", hub.requests.clear)
    hub.when("/over/gone", hub.stop)
    first, again, gone, offline = child(code_of_child)
    hashes = {case["answer"] for case in [*first, *again, *gone, *offline]}
    assert len(hashes) == 1 and None not in hashes, (first, gone)
    assert not hub.asked(r"\.(pth|onnx|h5)$|consolidated|fp16|/plain/.*\.bin")
    assert all(re.search(r"^Fetching \d+ files?, [\d.]+ kB, of the model someone/", case["said"]) for case in first[:3])
    assert not any(case["said"] for case in [*again, first[3], gone[3], *offline])
    assert not hub.asked("resolve")  # whether the branch has moved, and no more
    assert all("The hub does not answer" in case["said"] and " is read at commit " in case["said"] for case in gone[:3])


def test_code_of_a_model_is_that_of_one_commit_too(hub, child, model_folders):
    """In its own repository and in another one: a push to either changes nothing for later jobs, which ask nothing."""
    folder = model_folders()
    hub.model("someone/own").push(with_code(folder) | code(1))
    first = hub.model("other/code").push(code(1))
    hub.model("someone/elsewhere").push(with_code(folder, "other/code"))
    code_of_child = """
from ffkv.base.hub.commit import read_commit, resolve_model, write_commit
from ffkv.model.checkpoint.load import load
from ffkv.model.head.head_file import load_head
from ffkv.model.step import prove
names = ["own", "elsewhere"]
refused = [attempt(prove, Model(checkpoint="someone/" + name))["refusal"] for name in names]
trusted = [Model(checkpoint="someone/" + name, trust_remote_code=True) for name in names]
commits = [resolve_model(one) for one in trusted]
for name, commit in zip(names, commits):
    write_commit(Path(name + ".json"), commit)
assert [read_commit(name + ".json") for name in names] == commits
over("push")
numbers = []
for name, settings, commit in zip(names, trusted, commits):
    proven = prove(settings, commit)
    Path(name).mkdir()
    anatomy = proven.write(name)
    numbers.append([proven.model.number, anatomy.code])
over("clear")
numbers += [load(name, "cpu", trust_remote_code=True).model.number for name in names]
for name in names:
    load_head(name, "cpu", trust_remote_code=True)
over("end")
numbers += [prove(settings).model.number for settings in trusted]
print(json.dumps([refused, numbers]))
"""

    def push() -> None:
        for name in ("someone/own", "other/code"):
            hub.model(name).push(code(2))

    asked = []
    hub.when("/over/push", push)
    hub.when("/over/clear", hub.requests.clear)
    hub.when("/over/end", lambda: asked.extend(request.path for request in hub.requests[1:-1]))
    refused, numbers = child(code_of_child)
    assert all("it brings code of its own, which is not run" in refusal for refusal in refused), refused
    assert numbers == [[1, {}], [1, {"other/code": first}], 1, 1, 2, 2]
    assert not asked
