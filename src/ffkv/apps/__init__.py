"""What people do with a finished run: the explorer, annotation, machine annotators, exports.

None changes a run. `explorer` shows it in a browser, `annotation` makes blind sheets and compares those who filled
them, `machine` asks a language model to explain memories, `export` writes the formats of other tools.
"""
