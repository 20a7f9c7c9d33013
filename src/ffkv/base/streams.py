"""Streams of random numbers: one for each purpose, layer and seed."""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """Why random numbers are drawn. A number is never given to another purpose, or results would change."""

    SAMPLED_KEYS = 0
    RANDOM_EXAMPLES = 1
    BACKGROUND_PREFIXES = 2
    REMOVED_TOKENS = 3
    SIMILARITY = 4
    SAMPLED_PREFIXES = 5
    PREDICTION_CHANGES = 6
    RANDOM_TOKEN_PAIRS = 7
    PERMUTED_KEYS = 8
    PASSAGES = 10
    SHOWN_PREFIXES = 11
    CHANGED_MEMORIES = 12
    CHANGED_PREFIXES = 13
    CONTROL_MEMORIES = 14
    CONTROL_DIRECTIONS = 15
    SIMILAR_MEMORIES = 16
    KEPT_PREFIXES = 17
    KEPT_MEMORIES = 18
    SHEETS = 20
    SHEET_CONTROLS = 21
    COMPARISON_BOOTSTRAP = 23
    COMPARISON_PERMUTATIONS = 24
    COMPARISON_SAMPLE = 25
    EXPORTED_SENTENCES = 27
    EXPORTED_SAMPLE = 28
    MACHINE_TEXTS = 29
    MACHINE_MEMORIES = 31
    BEHAVIOUR_PROMPTS = 32
    SIGN_FLIPS = 33
    BEHAVIOUR_CONTROLS = 34
    BEHAVIOUR_DIRECTIONS = 35
    RANDOM_SETS = 36
    BEHAVIOUR_BOOTSTRAP = 37
    SIDE_EFFECT_PREFIXES = 38
    REFERENCE_PREFIXES = 57
    RANDOM_PLACES = 46
    PERMUTED_ROLES = 45
    SHUFFLED_PAIRS = 50
    DESCENT = 51
    GRAPH_BOOTSTRAP = 55
    GRAPH_SETS = 56
    JACOBIAN_TEXTS = 58
    JACOBIAN_SIGNS = 59
    ROTATIONS = 60
    READING_SIGNS = 61
    PERMUTED_READINGS = 62
    MISSED = 63
    SHUFFLED_MEMORIES = 64
    CONCEPT_TEXTS = 65
    CONCEPT_DRAWS = 66
    CONCEPT_DIRECTIONS = 67
    SHUFFLED_CONCEPTS = 68
    ROUTED_DOCUMENTS = 69
    EXPERT_FLIPS = 70
    RECONSTRUCTED_DOCUMENTS = 71


def random_stream(seed: int, purpose: Purpose, *parts: int) -> np.random.Generator:
    """Returns a generator of random numbers that no other purpose, part or seed shares.

    The same arguments always give the same numbers. `parts`: for what they are drawn, such as the layer. A last part of
    0 does not change a stream, so a purpose should always have the same number of parts.
    """
    return np.random.default_rng([seed, int(purpose), *parts])
