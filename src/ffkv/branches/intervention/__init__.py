"""What memories cause: interventions on their coefficients (zero ablation, mean ablation, scaling), with controls.

For each layer, `by_layer` draws memories, prefixes and controls (`sample`); the prefixes on which a few memories are kept
serve all layers. `changes` has the vectors by which interventions and controls change o at one token, `rerun` runs the
blocks after the layer again, `effects` reads out what changed, `measure` does it for all of them. `significance` compares
a memory with its controls, `summaries` sums up. `tables` describes the tables, `step` has the functions on files.
docs/interventions.md defines every number.
"""
