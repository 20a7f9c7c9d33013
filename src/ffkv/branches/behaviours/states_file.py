"""`behaviours/<name>/states/<shard>.h5`: what memories do on prompts."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ffkv.base.files.datasets import LAYER_OFFSET, dataset

BLOCK = 32  # prompts whose batches are made together, so that shards change no number
OF_MEMORIES = {"unit": "1", "chunks": {"prompt": 64, "memory": "largest_layer"}}


@dataclass(frozen=True, kw_only=True)
class PromptStates:
    """What `behaviours/<name>/states/<shard>.h5` holds. Quantities by memory are sums over the tokens of each prompt that are
    patched: the last one, or all (the setting `positions`)."""

    layer_offset: np.ndarray = dataset("layer_boundary", "int64", unit="memory", about=LAYER_OFFSET)
    norm: np.ndarray = dataset("memory", "float32", unit="1", about="length of the value")
    prompt: np.ndarray = dataset("prompt", "int32", unit="1", about="number of the prompt in `prompts.parquet`")
    difference: np.ndarray = dataset(
        "prompt", "float32", unit="1", about="logit of the answer minus that of the wrong answer; NaN in lists"
    )
    patch_difference: np.ndarray = dataset(
        "prompt", "float32", unit="1", about="the same on the other prompt of the pair; NaN without one"
    )
    probability: np.ndarray = dataset("prompt", "float32", unit="1", about="probability of the answer; NaN in lists")
    contribution: np.ndarray = dataset(
        "prompt memory",
        "float32",
        about="s m ‖v‖, clean - patch; without pairs clean - mean; in lists clean alone",
        **OF_MEMORIES,
    )
    coefficient: np.ndarray = dataset("prompt memory", "float32", about="the same of m alone", **OF_MEMORIES)
    change: np.ndarray = dataset(
        "prompt memory",
        "float32",
        about="by how much s m changes when the memory is patched, s held, without its sign; 0 in lists",
        **OF_MEMORIES,
    )
    screen: np.ndarray = dataset(
        "prompt memory",
        "float32",
        about="by how much `difference` falls when the memory is patched, if all is linear; 0 in lists",
        **OF_MEMORIES,
    )
    frozen_screen: np.ndarray = dataset(
        "prompt memory",
        "float32",
        about="the same with factors of norms and patterns of attention held; NaN if the model cannot hold them; 0 in lists",
        **OF_MEMORIES,
    )
    attributes: dict[str, Any]  # the attributes of the file
