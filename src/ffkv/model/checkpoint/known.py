"""Hashes of weights that were computed before, by the state of the files that they were read from.

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

from transformers import PreTrainedModel

from ffkv.base.files.atomic import atomic
from ffkv.base.files.provenance import versions
from ffkv.base.files.steady import files_in
from ffkv.base.hub.commit import Commit
from ffkv.base.hub.fetch import choose_files_of, local_model
from ffkv.base.settings import Model
from ffkv.model.checkpoint.fingerprint import weights_hash

SETTLED = 2.0  # seconds: a file that changed more recently may change again within one tick of the clock
NOTHING = ""


def state_of(settings: Model, commit: Commit) -> str:
    """Returns a key that a checkpoint's weights follow from; "" if none is known.

    It is made from the state of all its files, of the settings that its weights depend on, and of the versions of the
    libraries. A checkpoint of the hub is its folder in the hub's cache; its files are fetched if they are not there.

    Args:
        settings: of the checkpoint.
        commit: the commit of a checkpoint on the hub.
    """
    folders = [Path(local_model(commit, choose_files_of(settings.gguf, settings.weights != "random")))]
    folders += [Path(local_model(commit.of_adapter))] if commit.adapter else []
    try:
        entries = {str(path): path.stat() for folder in folders for path in files_in(folder)}
    except OSError:  # loading says why
        return NOTHING
    if not entries or max(entry.st_ctime for entry in entries.values()) > time.time() - SETTLED:
        return NOTHING
    files = {
        name: (entry.st_size, entry.st_mtime_ns, entry.st_ctime_ns, entry.st_ino, entry.st_dev)
        for name, entry in entries.items()
    }
    chosen = settings.model_dump(include={"dtype", "gguf", "trust_remote_code", "weights", "weights_seed"})
    what = [[str(folder.resolve()) for folder in folders], files, chosen, versions()]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def hash_once(settings: Model, commit: Commit, model: PreTrainedModel, state: str) -> str:
    """Returns the hash of a model's weights: the noted one for the state of its files, else computed and noted.

    Args:
        settings: of the checkpoint.
        commit: the commit of a checkpoint on the hub.
        model: the model.
        state: `state_of` before the model was loaded.
    """
    known = known_hash(state)
    if known and state_of(settings, commit) == state:
        return known
    computed = weights_hash(model)
    if state_of(settings, commit) == state:
        note_hash(state, computed)
    return computed


def known_hash(state: str) -> str:
    """Returns the hash that was noted for a state; "" if there is none."""
    try:
        return _note(state).read_text() if state else NOTHING
    except OSError:
        return NOTHING


def note_hash(state: str, weights_hash: str) -> None:
    """Notes the hash of a state. It only saves time: nothing is said if it cannot be written."""
    if not state:
        return
    with contextlib.suppress(Exception):
        _note(state).parent.mkdir(parents=True, exist_ok=True)
        with atomic(_note(state), summed=False) as temporary:
            temporary.write_text(weights_hash)


def _note(state: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "ffkv" / "weights" / state
