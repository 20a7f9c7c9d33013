"""The branches of the analysis: keys, values, composition, refinement, interventions."""
