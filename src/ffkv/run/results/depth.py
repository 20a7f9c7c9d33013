"""Layers of models with different numbers of layers, by their relative depth."""


def relative_depth(layer: int, layers: int) -> float:
    """Returns the relative depth of a layer, (l + 1/2) / L: the middle of the share of the depth that it takes."""
    return (2 * layer + 1) / (2 * layers)


def pair_layers(first: int, second: int) -> list[tuple[float, int, int]]:
    """Pairs the layers of two models by relative depth.

    Layer l of L layers takes the share l/L to (l + 1)/L of the depth. Each layer of the deeper model is paired with the layer of the
    other one whose share holds its relative depth. Returns this depth, and the layers of both.

    `first`, `second`: the numbers of layers.
    """
    most = max(first, second)
    places = range(1, 2 * most, 2)  # twice the depth, in layers: whole numbers, so that nothing is rounded
    return [(place / (2 * most), place * first // (2 * most), place * second // (2 * most)) for place in places]
