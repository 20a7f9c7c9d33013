"""How much of a logit difference the embedding, attention and memories write, in which layer (`ffkv.model.effects.writes`).

Direct: what they write into the last residual. Total: the prompt runs again, and they write what they do on the other prompt of the pair.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from ffkv.base.terminal import say
from ffkv.branches.behaviours.stored import Encoded
from ffkv.branches.behaviours.words import EVERYTHING, WRITERS
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects.gradient import Frozen
from ffkv.model.effects.rerun import TOLERANCE, Running
from ffkv.model.effects.writes import Writer, norms_before, patched_writes, run_writes, writers_of
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
            made = patched_writes(loaded, norms, ids, patch, slice(start, stop), patched, running.batch_tokens)
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
