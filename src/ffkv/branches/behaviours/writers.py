"""How much of a logit difference the embedding, attention and memories write, in which layer (`ffkv.model.effects.writes`).

Direct: what they write into the last residual. Total: the prompt runs again, and they write what they do on the other prompt of the pair.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from ffkv.base.terminal import say
from ffkv.branches.behaviours.stored import Encoded
from ffkv.branches.behaviours.words import EVERYTHING, WRITERS
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects.gradient import Frozen
from ffkv.model.effects.rerun import TOLERANCE, Running
from ffkv.model.effects.writes import ERROR, Writer, Writes, norms_before, run_writes, writers_of
from ffkv.model.tap.hooks import relative_error, tried


def sets_of_writers(writers: Sequence[Writer]) -> tuple[list[dict], np.ndarray]:
    """Returns names of sets of writers, and which writers they have [set, writer]. `writers`: see `writers_of`.

    Each writer of each layer, then of all layers the embedding, attention, memories, errors if there are any, and everything.
    """
    layer, kind = map(np.array, zip(*writers, strict=True))
    named = [*writers[1:], *((-1, each) for each in WRITERS if each in {*kind.tolist(), EVERYTHING})]
    sets = [((layer == n) | (n < 0)) & ((kind == each) | (each == EVERYTHING)) for n, each in named]
    return [{"layer": n, "writer": each} for n, each in named], np.stack(sets)


def find_norms(loaded: LoadedModel, prompts: Sequence[Encoded]) -> list[nn.Module]:
    """Returns what `measure_writers` needs. None of prompts that are no pairs; nor, and says why, where writes cannot be told apart."""
    ids = [torch.tensor(each.clean)[None].to(loaded.device) for each in prompts[:1] if len(each.patch)]
    found = tried(norms_before, loaded, *ids) if ids else []
    if not isinstance(found, list):
        say(f"What attention and memories write of a behaviour is not told, because {found}.", error=True)
    return found if isinstance(found, list) else []


def measure_writers(running: Running, norms: Sequence[nn.Module], prompts: Sequence[Encoded]) -> list[dict]:
    """Returns rows of the table `WRITERS`, without the behaviour, of the rows of pairs. The model computes in float32.

    A prompt has none, and is named, if a run in which nothing is patched, or everything, predicts otherwise than on it, or the other one.

    `norms`: see `find_norms`; without any there are no rows. `prompts`: see `Encoded`.
    """
    loaded, head, rows, unproven = running.loaded, running.head, list[dict](), set[int]()
    named, sets = sets_of_writers(writers_of(loaded.anatomy))
    patched = torch.from_numpy(np.pad(sets, ((0, 1), (0, 0)))).to(loaded.device)  # a last copy has nothing patched
    for prompt in prompts if norms else ():
        ids, other = (torch.tensor(own)[None].to(loaded.device) for own in (prompt.clean, prompt.patch))
        clean, patch = (run_writes(loaded, norms, own) for own in (ids, other))
        pair = torch.tensor([[prompt.answer, prompt.wrong]])
        with Frozen():
            _, slope = head.difference_gradients(clean.end[:, -1], pair, loaded.anatomy.read_as)
        changes = (clean.parts[:, -1] - patch.parts[:, -1]).double()
        found = {("direct", "last"): sets @ (changes @ slope[0].to(changes)).cpu().numpy()}
        stop, last = -prompt.after or None, -1 - prompt.after
        for positions, start in (("last", last), ("all", None))[: 1 + (ids.shape == other.shape)]:
            made = _ends(running, norms, ids, patch, slice(start, stop), patched)
            proof, ends = made[:, [last, -1]].unbind(1)
            if not relative_error(proof[-2:], torch.cat([patch.end[:, last], clean.end[:, last]])) < TOLERANCE:
                unproven.add(prompt.number)
                break
            differences = head.differences(ends, pair.expand(len(ends), -1), loaded.anatomy.read_as).double()
            found["total", positions] = (differences[-1] - differences[:-1]).cpu().numpy()
        rows += [
            {"prompt": prompt.number, "reach": reach, "positions": positions, **each, "effect": effect}
            for (reach, positions), effects in found.items()
            for each, effect in zip(named, effects.tolist(), strict=True)
        ]
    for number in sorted(unproven):
        why = "a change of nothing, or of all that is written, gives another prediction than it, or the other prompt, has."
        say(f"What attention and memories write on prompt {number} is not told: {why}", error=True)
    return [row for row in rows if row["prompt"] not in unproven]


def _ends(running: Running, norms: Sequence[nn.Module], ids: Tensor, to: Writes, at: slice, patched: Tensor) -> Tensor:
    """Returns what the head reads of copies of a prompt, see `run_writes` [copy, token, d]."""
    at_once = patched.split(max(1, running.batch_tokens // ids.shape[1]))
    return torch.cat([run_writes(running.loaded, norms, ids, to, at, each).end for each in at_once])


def measure_errors(running: Running, prompt: Encoded) -> pd.DataFrame:
    """Returns by how much the logit difference falls if what a dictionary leaves of y is patched at one token, and nothing else.

    It becomes what it is on the other prompt of a pair; else 0. The model computes in float32. Columns: layer, position (of a token that
    is patched), effect (NaN if what is written cannot be told apart), the largest first. No rows if dictionaries leave nothing.
    """
    loaded, count = running.loaded, len(prompt.clean)
    errors = [n for n, (_, what) in enumerate(writers_of(loaded.anatomy)) if what == ERROR]
    places = [*itertools.product(errors, range(count - prompt.tokens, count))]
    found = pd.DataFrame(places, columns=["writer", "position"], dtype=int).assign(effect=np.nan)
    ids, other = (torch.tensor(own)[None].to(loaded.device) for own in (prompt.clean, prompt.patch))
    norms = tried(norms_before, loaded, ids) if errors else ""
    if isinstance(norms, list):
        clean = run_writes(loaded, norms, ids)
        nothing = Writes({writer: torch.zeros_like(own) for writer, own in clean.noted.items()}, clean.end)
        to = run_writes(loaded, norms, other) if len(prompt.patch) else nothing
        for position, own in found.groupby("position"):
            patched = np.arange(len(clean.parts)) == np.append(own["writer"], -1)[:, None]  # nothing in the last copy
            at = slice(position, position + 1)
            ends = _ends(running, norms, ids, to, at, torch.from_numpy(patched).to(loaded.device))[:, -1]
            if relative_error(ends[-1], clean.end[0, -1]) < TOLERANCE:
                pair = torch.tensor([[prompt.answer, prompt.wrong]]).expand(len(ends), -1)
                differences = running.head.differences(ends, pair, loaded.anatomy.read_as).double().cpu()
                found.loc[own.index, "effect"] = (differences[-1] - differences[:-1]).numpy()
    found.insert(0, "layer", [writers_of(loaded.anatomy)[n][0] for n in found.pop("writer")])
    return found.sort_values("effect", key=np.abs, ascending=False, kind="stable", ignore_index=True)
