"""The settings of the branch `translation`: linear maps to the last layer."""

from typing import Literal

from pydantic import Field

from ffkv.base.settings.section import Section, Whole


class Translation(Section):
    """Linear maps from the space of each layer to that of the last layer, if `values.readout` is `both`."""

    prefixes: Whole = Field(20_000, ge=5)
    """Number of train prefixes on whose states the maps are fitted. A map needs several times as many as the residual stream has
    dimensions. Their block outputs are stored: 4 bytes per prefix, layer and dimension."""
    fit: Literal["ridge", "divergence"] = "ridge"
    """How the maps are fitted. `ridge`: in closed form, with the smallest squared error of states. `divergence`: from there on by
    gradient descent on the divergence of predictions, as the tuned lens does, as long as the divergence on prefixes that are left
    out falls. It takes some hundred times as long."""
