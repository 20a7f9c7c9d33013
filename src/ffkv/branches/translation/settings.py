"""The settings of the branch `translation`: linear maps to the last layer."""

from typing import Literal

from pydantic import Field

from ffkv.base.errors import UserError
from ffkv.base.lookup import is_file
from ffkv.base.settings.section import Section, Whole

LEAST_TOKENS = 3  # of a text behind those that are left out: two that count, and the last one, which does not


class Translation(Section):
    """Linear maps from the space of each layer to that of the last layer, if `values.readout` is `both` or `all`."""

    prefixes: Whole = Field(20_000, ge=5)
    """Number of train prefixes on whose states the maps are fitted. A map needs several times as many as the residual stream has
    dimensions. Their block outputs are stored: 4 bytes per prefix, layer and dimension."""
    fit: Literal["ridge", "divergence", "jacobian"] = "ridge"
    """How the maps are fitted. `ridge`: in closed form, with the smallest squared error of states. `divergence`: from there on by
    gradient descent on the divergence of predictions, as the tuned lens does, as long as the divergence on prefixes that are left
    out falls. It takes some hundred times as long. `jacobian`: not at all; the map is the mean derivative of the last layer's
    output with respect to that of the layer, as in the Jacobian lens."""
    texts: Whole = Field(16, ge=1, le=100_000)
    """Number of train texts over which the derivatives are averaged. Each one takes as many backward passes as the residual stream
    has dimensions."""
    tokens: Whole = Field(64, ge=4)
    """Maximum number of tokens of such a text."""
    skip: Whole = Field(16, ge=0)
    """Number of first positions of each text that do not count. There, states of many models are unlike all others."""
    reach: Literal["all", "same"] = "all"
    """Which derivatives count. `all`: of the last layer's output at each position with respect to that of the layer at the same
    position and at earlier ones, as published. `same`: at the same position, by an estimate with random signs."""
    reading_texts: Whole = Field(4, ge=0, le=100_000)
    """Number of these texts over which is averaged what keys read of the embedding of a token. It takes some twice as long per text as
    the derivatives above. 0: it is not measured."""
    lens: str = ""
    """File of a published Jacobian lens of the model, which is read in place of texts. Empty means that there is none."""

    def contradictions(self) -> list[str]:
        """A text has positions that count."""
        short = self.tokens < self.skip + LEAST_TOKENS
        return [
            f"skip: must be at most {self.tokens - LEAST_TOKENS}, so that texts of {self.tokens} tokens have two that count"
        ] * short


def lens_files(settings: Translation, read: bool = False) -> list[str]:
    """Returns the file of a published lens, if one is named. Raises UserError if it is not there; `read` tells nothing more."""
    if settings.lens and not is_file(settings.lens):
        raise UserError(f"There is no file {settings.lens}. Set translation.lens to another one.")
    return [settings.lens] * bool(settings.lens)
