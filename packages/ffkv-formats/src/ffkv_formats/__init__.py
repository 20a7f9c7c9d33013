"""The formats of other tools: each module writes one, and `ffkv export` finds it by its entry point.

`neuron_record`, `neuronpedia`, `saedashboard`, `delphi`, `transluce` and `circuit_tracer` write what the tool's own code reads.
`circuit_tracer_graphs` writes the graph of a prompt (the door `ffkv.graph_formats`).
`jacobian_lens` writes no memories, but the lens of a run. `notebook` gives arguments of CircuitsVis instead of files.
`shared` has what several formats use.

This is a package of its own because a format of another tool follows that tool's releases. It comes through the door `ffkv.formats`, as
a package of strangers does.
"""

from ffkv.base.public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
