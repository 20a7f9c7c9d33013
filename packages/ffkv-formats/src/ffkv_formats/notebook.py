"""The arguments of CircuitsVis for the trigger examples of a memory."""

import itertools
from typing import Any

from ffkv.base.errors import UserError
from ffkv.run.results.memory import Memory
from ffkv.run.results.memory_columns import SIDES, stored_examples
from ffkv.run.results.memory_name import whole_number
from ffkv.run.trace.coefficients import coefficients

SLASH = "\N{DIVISION SLASH}"


class CircuitsVis(dict[str, Any]):
    """The arguments of `circuitsvis.activations.text_neuron_activations`, by name."""

    def show(self) -> Any:
        """Calls it. In a notebook, what it returns asks google.com whether there is a network.

        Raises UserError if CircuitsVis is not installed.
        """
        try:
            from circuitsvis.activations import text_neuron_activations
        except ImportError as error:
            raise UserError(
                f"CircuitsVis cannot be imported ({error}). Install it: pip install circuitsvis."
            ) from error
        return text_neuron_activations(**self)


def circuitsvis(memory: Memory, examples: int = 5, device: str = "auto") -> CircuitsVis:
    """Returns the arguments of CircuitsVis' `text_neuron_activations` for the strongest trigger examples of both signs.

    CircuitsVis need not be installed. If it is, `ffkv_formats.circuitsvis(memory).show()` calls it. A text that would end the
    script into which CircuitsVis writes tokens, such as `</script>`, has another slash.

    Args:
        memory: a memory of a finished run.
        examples: sentences per sign, at most.
        device: as in `Run.model`: every token of the sentences gets its coefficient.
    Returns:
        tokens [sentence][token], activations [sentence][token, 1, 1], and names and labels of the two other axes.
    Raises:
        UserError: the memory has no trigger example; or the checkpoint is gone or its weights have changed.
    Examples:
        >>> run = ffkv.open("results/tiny")
        >>> found = ffkv_formats.circuitsvis(run.memory(run.memories(sort="firing_rate")["name"].iloc[0]), examples=1)
        >>> len(found["tokens"][0]) == len(found["activations"][0])  # one coefficient per token
        True
    """
    if not isinstance(memory, Memory):
        raise UserError(f"memory is {memory!r}. Take one of a run, as in run.memory('L3.17').")
    if whole_number("examples", examples) < 1:
        raise UserError(f"examples is {examples}. Ask for one sentence or more.")
    run = memory.run
    stored = (stored_examples(run.files, memory.row, side, ["sentence"])["sentence"].tolist() for side in SIDES)
    strongest = ([*dict.fromkeys(of_side)][:examples] for of_side in stored)
    sentences = [*dict.fromkeys(itertools.chain.from_iterable(strongest))]
    if not sentences:
        raise UserError(f"{memory.name} has no trigger example, so there is no text to show.")
    corpus = run.corpus("train")
    tokens = [list(map(harmless, corpus.token_texts(sentence))) for sentence in sentences]
    found = coefficients(run, sentences, memory.name, device)[memory.name].groupby(level="text")
    return CircuitsVis(
        tokens=tokens,
        activations=[m.to_numpy()[:, None, None] for _, m in found],
        first_dimension_name="Layer",
        second_dimension_name="Memory",
        first_dimension_labels=[str(memory.layer)],
        second_dimension_labels=[str(memory.memory)],
    )


def harmless(token: str) -> str:
    """Gives `</` and `<!` another second character, so that no token ends the script that CircuitsVis writes."""
    return token.replace("</", f"<{SLASH}").replace("<!", "<\N{LATIN LETTER RETROFLEX CLICK}")
