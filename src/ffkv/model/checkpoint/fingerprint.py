"""Hashes that identify a model and a tokenizer.

Hashing reads every weight: minutes for a large model. Several jobs of a run load the same checkpoint. So the hash is
noted in the user's cache folder, under the sizes, times and inodes of the checkpoint's files. The time of the last
change of a file's content or state (ctime) is among them, which no program can set: whoever writes into a file changes
it.
"""

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ffkv.base.files.atomic import atomic
from ffkv.base.files.provenance import versions
from ffkv.base.files.steady import files_in
from ffkv.base.hub.commit import Commit
from ffkv.base.hub.fetch import choose_files_of, local_model
from ffkv.base.lookup import make_folder
from ffkv.base.settings import Model
from ffkv.model.placement.resident import stored_tensor

# Fields of a config that do not change what the model computes.
UNHASHED = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")
SETTLED = 2.0  # seconds: a file that changed more recently may change again within one tick of the clock


def weights_hash(model: PreTrainedModel) -> str:
    """Hashes all that a model computes with: config, parameters, stored buffers, with names, types, shapes."""
    digest = hashlib.sha256()
    config = {key: value for key, value in model.config.to_diff_dict().items() if key not in UNHASHED}
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    for name in _tensor_names(model):
        tensor = stored_tensor(model, name)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _tensor_names(model: PreTrainedModel) -> list[str]:
    """Returns the names of the parameters, each once, and of the stored buffers, sorted."""
    buffers = dict(model.named_buffers())
    stored = [name for name in model.state_dict() if name in buffers]
    parameters = dict(model.named_parameters())
    # Tensors that a checkpoint shares are no longer one object while they are elsewhere.
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    again = {name for name, tensor in parameters.items() if tensor.is_meta and tied.get(name) in parameters}
    return sorted([*(name for name in parameters if name not in again), *stored])


def tokenizer_hash(tokenizer: PreTrainedTokenizerFast) -> str:
    """Returns a hash of the tokenizer's complete definition."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()[:16]


def state_of(settings: Model, commit: Commit) -> str:
    """Returns a key that a checkpoint's weights follow from; "" if none is known.

    It is made from the state of all its files, of the settings that its weights depend on, and of the versions of the
    libraries. A checkpoint of the hub is its folder in the hub's cache; its files are fetched if they are not there.
    """
    folders = [Path(local_model(commit, choose_files_of(settings.gguf, settings.weights != "random")))]
    folders += [Path(local_model(commit.of_adapter))] if commit.adapter else []
    try:
        entries = {str(path): path.stat() for folder in folders for path in files_in(folder)}
    except OSError:  # loading says why
        return ""
    if not entries or max(entry.st_ctime for entry in entries.values()) > time.time() - SETTLED:
        return ""
    files = {
        name: (entry.st_size, entry.st_mtime_ns, entry.st_ctime_ns, entry.st_ino, entry.st_dev)
        for name, entry in entries.items()
    }
    chosen = settings.model_dump(include={"dtype", "gguf", "trust_remote_code", "weights", "weights_seed"})
    what = [[str(folder.resolve()) for folder in folders], files, chosen, versions()]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def hash_once(settings: Model, commit: Commit, model: PreTrainedModel, state: str) -> str:
    """Returns the hash of a model's weights: the noted one for the state of its files, else computed and noted.

    A note only saves time: nothing is said if it cannot be read or written. `state`: `state_of` before the model was
    loaded.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    note = cache / "ffkv" / "weights" / state
    known = ""
    with contextlib.suppress(OSError):
        known = note.read_text() if state else ""
    if known and state_of(settings, commit) == state:
        return known
    computed = weights_hash(model)
    if state and state_of(settings, commit) == state:
        with contextlib.suppress(Exception):
            make_folder(note.parent)
            with atomic(note, summed=False) as temporary:
                temporary.write_text(computed)
    return computed
