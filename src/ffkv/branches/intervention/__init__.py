"""What memories cause: interventions on their coefficients (zero ablation, mean ablation, scaling), with controls.

`units` draws memories, prefixes and controls for each layer, changes coefficients on them by `ffkv.model.effects`, and compares each
memory with its controls. `measure` does so for a group of layers, and keeps a few memories alone on prefixes that serve all
layers. `summarize` sums up. `tables` describes the tables. docs/interventions.md defines every number.
"""
