"""Models that are spread: which part lies where, and that the numbers are those of a model in memory."""

import gc

import h5py
import pytest
import torch
from support import CONFIGS, FULL, known_words, prove_into, random_checkpoint, random_sentences
from transformers import AutoModelForCausalLM

from ffkv.activations.step import find_triggers, sample_prefixes
from ffkv.activations.trigger_file import write_triggers
from ffkv.base.errors import UserError
from ffkv.base.steps import Work
from ffkv.branches.given import Given
from ffkv.branches.keys.removal import measure_precision, remove_tokens
from ffkv.branches.settings import Batches, Corpus, Keys, Prefixes, Triggers
from ffkv.corpus.corpus_file import write_corpus
from ffkv.corpus.document import Document
from ffkv.corpus.encode import encode
from ffkv.model import placement
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.load import load
from ffkv.model.checkpoint.tokenizer import tokenizer_hash
from ffkv.model.checkpoint.weights import weights_hash
from ffkv.model.placement import device_of, in_float32, resident
from ffkv.model.tap.tap import tap

NOTHING_FITS = {"cpu": "1"}  # all blocks are on the disk
FEW = Keys(per_layer=4, removal_triggers=3)


def parts(blocks=4, size=10, outside=5):
    return placement.Parts({"embed": outside}, {f"h.{number}": size for number in range(blocks)})


def places(room, **sizes):
    found = placement.spread(parts(**sizes), {**room, "disk": float("inf")})
    return [found["embed"], *(found[name] for name in found if name != "embed")]


def test_blocks_fill_gpus_then_memory_then_the_disk():
    assert places({0: 100, "cpu": 100}) == [0] * 5
    assert places({0: 26, "cpu": 100}) == [0, 0, "cpu", "cpu", "cpu"]  # 5 outside, 10 for a block from elsewhere
    assert places({0: 26, "cpu": 20}) == [0, 0, "cpu", "cpu", "disk"]
    assert places({0: 26, 1: 11, "cpu": 9}) == [0, 0, 1, "disk", "disk"]
    assert places({"cpu": 26}) == ["cpu", "cpu", "disk", "disk", "disk"]
    assert places({"cpu": 0}) == ["cpu", "disk", "disk", "disk", "disk"]


def test_gpus_that_hold_a_model_share_it_about_evenly():
    assert places({0: 100, 1: 100, "cpu": 0}, blocks=8) == [0, 0, 0, 0, 0, 1, 1, 1, 1]


def test_parts_are_whole_blocks_and_the_rest():
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIGS["gpt2"])
    found = placement.parts_of(model)
    assert list(found.blocks) == ["transformer.h.0", "transformer.h.1", "transformer.h.2"]
    around = ("wte", "wpe", "drop", "ln_f")
    assert {*found.outside} == {*(f"transformer.{name}" for name in around), "lm_head"}
    assert found.outside["lm_head"] == 0  # it shares the tensor of wte
    total = sum(tensor.numel() * 4 for tensor in model.parameters())
    assert sum(found.outside.values()) + sum(found.blocks.values()) == total


def test_a_model_that_fits_is_not_spread(monkeypatch):
    with torch.device("meta"):
        form = AutoModelForCausalLM.from_config(CONFIGS["gpt2"])
    assert placement.place(lambda: form, "cpu", True, {}) == placement.ON_CPU
    assert placement.place(lambda: form, "cpu", False, {"cpu": "1GiB"}) == placement.ON_CPU
    monkeypatch.setattr(placement, "free_memory", lambda: 1.0)
    assert placement.place(lambda: form, "cpu", False, {}) == placement.ON_CPU  # asked for by name
    assert placement.place(lambda: form, "cpu", True, {}).is_spread


def test_gpus_are_counted_and_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (1000 * (gpu + 1), 9000))
    monkeypatch.setattr(placement, "free_memory", lambda: 500.0)
    whole = [(0, 800), (1, 1600), ("cpu", 400), ("disk", float("inf"))]
    assert [*placement.room_on("cuda", True, {}).items()] == whole
    assert list(placement.room_on("cuda:1", False, {"cpu": "1KB"})) == [1, "cpu", "disk"]
    assert placement.room_on("cuda", True, {"0": "0", "1": "7"}) == {1: 7, "cpu": 400, "disk": float("inf")}
    assert list(placement.room_on("cuda:1", True, {})) == [1, 0, "cpu", "disk"]
    assert list(placement.room_on("cpu", True, {"3": "1GB"})) == ["cpu", "disk"]
    with pytest.raises(UserError, match="names the GPU 3, but torch finds 2 GPUs"):
        placement.room_on("cuda", True, {"3": "1GB"})


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """A train and a validation split of the random checkpoints' words."""
    folder, found = tmp_path_factory.mktemp("corpora"), {}
    tokenizer = known_words()
    for seed, split in enumerate(("train", "validation")):
        documents = [Document(f"d{number}", text) for number, text in enumerate(random_sentences(seed, 30))]
        encoded = encode(documents, tokenizer, 31, Corpus(splitter="line", pretokenized=True))
        attributes = {"tokenizer_hash": tokenizer_hash(tokenizer), "corpus_hash": split}
        found[split] = folder / f"{split}.h5"
        write_corpus(found[split], encoded, [0], True, attributes)
    return found


def results(folder, checkpoint, corpora, dtype, max_memory):
    """Every number that steps make with the model, by name; and the loaded model."""
    model, train = prove_into(folder, checkpoint, dtype=dtype, max_memory=max_memory), corpora["train"]
    batching = Batches(tokens=60)
    found = find_triggers(model, train, Triggers(per_key=4), batching, Work("cpu", max_memory))
    write_triggers(folder / "triggers.h5", found)
    settings = Prefixes(count=20, extra_states=["x", "factor"])
    states = folder / "prefixes.h5"
    sample_prefixes(model, corpora["validation"], states, settings, batching, 0, Work("cpu", max_memory))
    given = Given(Work("cpu", max_memory, 60), model=model, triggers=folder / "triggers.h5", train=train)
    removal, precision = remove_tokens(given, FEW), measure_precision(given, FEW)
    data = {"removal": removal.to_csv().encode(), "precision": precision.to_csv().encode()}
    for path in (folder / "values.h5", folder / "triggers.h5", states):
        with h5py.File(path) as file:
            names: list[str] = []
            file.visit(names.append)
            data |= {f"{path.name} {name}": file[name][...].tobytes() for name in names if hasattr(file[name], "shape")}
    data |= {path.name: path.read_bytes() for path in model.iterdir()}
    return data, load(model, "cpu", max_memory)


SPREAD = [("gemma2", "float32"), ("gpt-oss", "float32"), ("gpt2", "bfloat16")]


@pytest.mark.slow
@pytest.mark.many
@pytest.mark.parametrize(
    ("kind", "dtype"), [*SPREAD, *([("gpt2", "float32"), ("mixtral", "bfloat16")] if FULL else [])]
)
def test_a_model_on_the_disk_gives_the_bytes_of_one_in_memory(tmp_path, checkpoints, corpora, kind, dtype):
    """With all blocks on the disk, and with the first block in memory: two places, as with two devices."""
    expected, whole = results(tmp_path / "memory", checkpoints(kind), corpora, dtype, {})
    sizes = placement.parts_of(whole.model)
    room = sum(sizes.outside.values()) + 2 * max(sizes.blocks.values())  # for the first block, and for one that runs
    for name, limits in {"disk": NOTHING_FITS, "both": {"cpu": str(room)}}.items():
        found, loaded = results(tmp_path / name, checkpoints(kind), corpora, dtype, limits)
        away = [all(tensor.is_meta for tensor in block.parameters()) for block in blocks_of(loaded)]
        assert away == [name == "disk", *[True] * (len(away) - 1)]
        assert found.keys() == expected.keys()
        assert not [name for name in expected if found[name] != expected[name]]


def blocks_of(loaded):
    return [loaded.model.get_submodule(layer.block) for layer in loaded.anatomy.layers]


@pytest.fixture
def on_disk(proven):
    return load(proven("gpt2"), "cpu", NOTHING_FITS)


def test_weights_are_there_only_while_they_are_wanted(on_disk, proven):
    block = blocks_of(on_disk)[0]
    expected = blocks_of(load(proven("gpt2"), "cpu"))[0].mlp.c_proj.weight
    weight = lambda: block.mlp.c_proj.weight  # noqa: E731  # the parameter is another object each time
    assert weight().is_meta and device_of(block) == torch.device("cpu")
    with resident(block):
        assert torch.equal(weight(), expected)
        with resident(block.mlp):
            assert torch.equal(weight(), expected)
        assert torch.equal(weight(), expected)
    assert weight().is_meta
    with pytest.raises(ZeroDivisionError), in_float32(block):
        raise ZeroDivisionError
    assert weight().is_meta


def test_a_pass_that_ends_in_the_middle_leaves_nothing_behind(on_disk):
    seen = []
    with tap(on_disk.model, on_disk.anatomy.layers[:2], "m") as run:
        run(torch.ones(1, 4, dtype=torch.long), lambda *found: seen.append(found[1]))
    assert seen == ["m", "m"]
    assert all(tensor.is_meta for block in blocks_of(on_disk) for tensor in block.parameters())


def test_the_folder_of_a_model_on_the_disk_is_removed(tmp_path, proven, monkeypatch):
    monkeypatch.setattr(placement.tempfile, "tempdir", str(tmp_path))
    loaded = load(proven("gpt2"), "cpu", NOTHING_FITS)
    assert len(list(tmp_path.glob("ffkv-offload-*"))) == 1
    del loaded
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_changed_weight_on_the_disk_is_noticed(tmp_path):
    folder = prove_into(tmp_path / "stage", random_checkpoint(tmp_path / "checkpoint", "gpt2"))
    assert weights_hash(load(folder, "cpu", NOTHING_FITS).model) == read_anatomy(folder).model_hash
    random_checkpoint(tmp_path / "checkpoint", "gpt2", seed=1)
    with pytest.raises(UserError, match="have changed"):
        load(folder, "cpu", NOTHING_FITS)
