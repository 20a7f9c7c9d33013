"""The arguments of CircuitsVis for the trigger examples of a memory."""

from typing import Any

import numpy as np

from ffkv.base.errors import UserError
from ffkv.run.results.memory_columns import SIDES, stored_examples
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run import Run
from ffkv.run.trace.coefficients import coefficients

SLASH = "\N{DIVISION SLASH}"


class CircuitsVis(dict[str, Any]):
    """The arguments of `circuitsvis.activations.text_neuron_activations`, by name."""

    def show(self) -> Any:
        """Calls it. In a notebook, what it returns asks google.com whether there is a network.

        Raises:
            UserError: CircuitsVis is not installed.
        """
        try:
            from circuitsvis.activations import text_neuron_activations
        except ImportError as error:
            raise UserError(
                f"CircuitsVis cannot be imported ({error}). Install it: pip install circuitsvis."
            ) from error
        return text_neuron_activations(**self)


def arguments(run: Run, layer: int, memory: int, examples: int, device: str) -> CircuitsVis:
    """The arguments for a memory. See `Memory.circuitsvis`."""
    if examples < 1:
        raise UserError(f"examples is {examples}. Ask for one sentence or more.")
    row = run.anatomy.layer_offset[layer] + memory
    sentences: list[int] = []
    for side in SIDES:
        stored = stored_examples(run, row, side, ["sentence"])["sentence"].tolist()
        sentences += [*dict.fromkeys(stored)][:examples]
    sentences = [*dict.fromkeys(sentences)]
    if not sentences:
        raise UserError(f"{memory_name(layer, memory)} has no trigger example, so there is no text to show.")
    corpus = run.corpus("train")
    tokens = []
    for sentence in sentences:
        start, stop = corpus.offsets[sentence : sentence + 2].tolist()
        text, ends = corpus.texts[sentence], np.asarray(corpus.token_end[start:stop]).tolist()
        tokens.append([harmless(text[a:b]) for a, b in zip([0, *ends], ends)])
    found = coefficients(run, layer, memory, sentences, device)
    return CircuitsVis(
        tokens=tokens,
        activations=[values[:, None, None] for values in found],
        first_dimension_name="Layer",
        second_dimension_name="Memory",
        first_dimension_labels=[str(layer)],
        second_dimension_labels=[str(memory)],
    )


def harmless(token: str) -> str:
    """A token that cannot end the script into which CircuitsVis writes it: its `</` and `<!` get another second character."""
    return token.replace("</", f"<{SLASH}").replace("<!", "<\N{LATIN LETTER RETROFLEX CLICK}")
