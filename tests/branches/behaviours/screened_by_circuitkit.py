"""Scores neurons of a GPT-2 by circuitkit's edge attribution patching: `python ... CHECKPOINT PROMPTS SCORES`.

It runs in a process of its own, with circuitkit and the TransformerLens that circuitkit needs on its path. Clean and patch prompts are as
long as each other, one pair at a time, so that no token is padded. Writes the scores [prompt, layer, neuron].
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from circuitkit.backends.eap import attribute_node  # isort: skip  # before TransformerLens, which it changes
from circuitkit.backends.eap.graph import Graph
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights
from transformers import AutoModelForCausalLM

checkpoint, prompts, output = map(Path, sys.argv[1:])
theirs = AutoModelForCausalLM.from_pretrained(checkpoint)
its = theirs.config
config = HookedTransformerConfig(
    n_layers=its.n_layer,
    d_model=its.n_embd,
    n_ctx=its.n_positions,
    d_head=its.n_embd // its.n_head,
    n_heads=its.n_head,
    d_mlp=4 * its.n_embd,
    d_vocab=its.vocab_size,
    act_fn="gelu_new",
    eps=its.layer_norm_epsilon,
    normalization_type="LN",
    original_architecture="GPT2LMHeadModel",
    device="cpu",
)
model = HookedTransformer(config)
state = convert_gpt2_weights(theirs, config)
model.load_and_process_state_dict(
    state, fold_ln=False, center_writing_weights=False, center_unembed=False, fold_value_biases=False
)
scores = []
for pair in json.loads(prompts.read_text()):
    clean, patch = (torch.tensor([pair[name]]) for name in ("clean", "patch"))
    torch.testing.assert_close(model(clean), theirs(clean).logits, rtol=1e-4, atol=1e-4)  # the same model
    count, mask = clean.shape[1], torch.ones_like(clean)
    tokens = clean, patch, mask, mask, torch.tensor([count]), count
    attribute_node.tokenize_batch_pair = lambda *given, tokens=tokens, **options: tokens
    graph = Graph.from_model(model, neuron_level=True, node_scores=True, mlp_hook="post_act")

    def difference(logits, clean_logits, lengths, label, pair=pair):
        return logits[0, -1, pair["answer"]] - logits[0, -1, pair["wrong"]]

    found = attribute_node.get_scores_eap(
        model, graph, [(["clean"], ["patch"], None)], difference, quiet=True, neuron=True
    )
    places = [graph.forward_index(graph.nodes[f"m{layer}"]) for layer in range(its.n_layer)]
    scores.append(found[places, : config.d_mlp].detach().numpy())
np.save(output, np.stack(scores))
