"""What memories cause: interventions on their coefficients (zero ablation, mean ablation, scaling), with controls.

For each layer, `by_layer` draws memories, prefixes and controls (`sample`); the prefixes on which a few memories are kept
serve all layers. `measure` changes coefficients on all of them by `ffkv.model.effects`. `significance` compares a memory
with its controls, `summaries` sums up. `tables` describes the tables, `step` has the functions on files.
docs/interventions.md defines every number.
"""
