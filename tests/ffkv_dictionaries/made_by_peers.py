"""Makes dictionaries with the code of those who have the forms, and says what that code gives. Runs in the environment of the peers.

FOLDER: each dictionary is written into FOLDER/<name>, and the coefficients and outputs on some states into FOLDER/<name>.npz.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

D, UNITS, K = 8, 32, 5
STATES = torch.randn(64, D, generator=torch.Generator().manual_seed(3))
Given = tuple[str, torch.Tensor, torch.Tensor]


def randomize(module: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(5)
    for name, parameter in module.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator) * 0.7
        parameter.data = drawn.abs() if "threshold" in name else drawn


def sae_lens(folder: Path) -> Iterator[Given]:
    from sae_lens.saes import sae as base
    from sae_lens.saes.abstopk_sae import AbsTopKSAE, AbsTopKSAEConfig
    from sae_lens.saes.batchtopk_sae import BatchTopKTrainingSAE, BatchTopKTrainingSAEConfig
    from sae_lens.saes.gated_sae import GatedSAE, GatedSAEConfig
    from sae_lens.saes.jumprelu_sae import JumpReLUSAE, JumpReLUSAEConfig
    from sae_lens.saes.matryoshka_batchtopk_sae import MatryoshkaBatchTopKTrainingSAE as Matryoshka
    from sae_lens.saes.matryoshka_batchtopk_sae import MatryoshkaBatchTopKTrainingSAEConfig as MatryoshkaConfig
    from sae_lens.saes.standard_sae import StandardSAE, StandardSAEConfig
    from sae_lens.saes.topk_sae import TopKSAE, TopKSAEConfig
    from sae_lens.saes.transcoder import (
        JumpReLUSkipTranscoder,
        JumpReLUSkipTranscoderConfig,
        JumpReLUTranscoder,
        JumpReLUTranscoderConfig,
        SkipTranscoder,
        SkipTranscoderConfig,
        Transcoder,
        TranscoderConfig,
    )

    sizes: dict[str, Any] = {"d_in": D, "d_sae": UNITS}
    shift: dict[str, Any] = {"apply_b_dec_to_input": True}
    makers = {
        "standard": (StandardSAE, StandardSAEConfig, shift),
        "standard_without_shift": (StandardSAE, StandardSAEConfig, {"apply_b_dec_to_input": False}),
        "gated": (GatedSAE, GatedSAEConfig, shift),
        "jumprelu": (JumpReLUSAE, JumpReLUSAEConfig, shift),
        "topk": (TopKSAE, TopKSAEConfig, {**shift, "k": K}),
        "topk_rescaled": (TopKSAE, TopKSAEConfig, {**shift, "k": K, "rescale_acts_by_decoder_norm": True}),
        "abstopk": (AbsTopKSAE, AbsTopKSAEConfig, {**shift, "k": K}),
        "transcoder": (Transcoder, TranscoderConfig, {"d_out": D, "apply_b_dec_to_input": False}),
        "skip_transcoder": (SkipTranscoder, SkipTranscoderConfig, {"d_out": D, "apply_b_dec_to_input": False}),
        "jumprelu_transcoder": (
            JumpReLUTranscoder,
            JumpReLUTranscoderConfig,
            {"d_out": D, "apply_b_dec_to_input": False},
        ),
        "jumprelu_skip_transcoder": (
            JumpReLUSkipTranscoder,
            JumpReLUSkipTranscoderConfig,
            {"d_out": D, "apply_b_dec_to_input": False},
        ),
    }
    for name, (kind, config, more) in makers.items():
        made = kind(config(**sizes, **more))
        randomize(made)
        made.save_model(folder / name)
        read = base.SAE if "transcoder" not in name else Transcoder
        loaded = read.load_from_disk(folder / name)
        yield name, loaded.encode(STATES), loaded(STATES)
    for name, kind, config, more in (
        ("batchtopk", BatchTopKTrainingSAE, BatchTopKTrainingSAEConfig, {"k": K}),
        ("matryoshka", Matryoshka, MatryoshkaConfig, {"k": K, "matryoshka_widths": [8, UNITS]}),
    ):
        made = kind(config(**sizes, **more))
        randomize(made)
        made.topk_threshold = torch.tensor(0.9, dtype=torch.float64)
        made.save_inference_model(folder / name)
        loaded = base.SAE.load_from_disk(folder / name)
        yield name, loaded.encode(STATES), loaded(STATES)
        made.save_model(folder / f"{name}_in_training")
        yield f"{name}_in_training", loaded.encode(STATES), loaded(STATES)
    for name, more in (("old", {}), ("old_topk", {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": K}})):
        made = StandardSAE(StandardSAEConfig(**sizes))
        randomize(made)
        made.save_model(folder / name)
        said = {**sizes, "dtype": "torch.float32", "hook_name": "blocks.0.hook_resid_post", "hook_layer": 0, **more}
        (folder / name / "cfg.json").write_text(json.dumps(said))
        loaded = base.SAE.load_from_disk(folder / name)
        yield name, loaded.encode(STATES), loaded(STATES)


def llama_scope(folder: Path) -> Iterator[Given]:
    """By the reader of SAELens: its m are √d / norm times those of OpenMOSS, where the values have the norm 1."""
    from sae_lens.loading import pretrained_sae_loaders as loaders
    from sae_lens.saes.jumprelu_sae import JumpReLUSAE, JumpReLUSAEConfig
    from safetensors.torch import save_file

    made, norm, place = JumpReLUSAE(JumpReLUSAEConfig(D, UNITS)), 5.0, folder / "llama_scope"
    randomize(made)
    (place / "checkpoints").mkdir(parents=True)
    said = {
        "d_model": D,
        "d_sae": UNITS,
        "act_fn": "jumprelu",
        "jump_relu_threshold": 0.3,
        "norm_activation": "dataset-wise",
    }
    said |= {"dataset_average_activation_norm": {"in": norm, "out": norm}, "apply_decoder_bias_to_pre_encoder": False}
    (place / "hyperparams.json").write_text(json.dumps(said | {"hook_point_in": "blocks.0.hook_resid_post"}))
    values = made.W_dec / made.W_dec.norm(dim=1, keepdim=True)
    saved = {
        "encoder.weight": made.W_enc.T,
        "encoder.bias": made.b_enc,
        "decoder.weight": values.T,
        "decoder.bias": made.b_dec,
    }
    saved = {name: tensor.detach().contiguous() for name, tensor in saved.items()}
    save_file(saved, place / "checkpoints/final.safetensors")
    loaders.hf_hub_download = lambda repo_id, filename, subfolder="", **_: str(folder / subfolder / filename)
    said, state, _ = loaders.llama_scope_sae_huggingface_loader("", "llama_scope", cfg_overrides={"dtype": "float32"})
    loaded = JumpReLUSAE(JumpReLUSAEConfig(D, UNITS, apply_b_dec_to_input=said["apply_b_dec_to_input"]))
    loaded.load_state_dict(state)
    scale = D**0.5 / norm
    loaded.fold_activation_norm_scaling_factor(scale)
    yield "llama_scope", loaded.encode(STATES) / scale, loaded(STATES)


def circuit_tracer(folder: Path) -> Iterator[Given]:
    from circuit_tracer.transcoder import single_layer_transcoder as theirs
    from circuit_tracer.transcoder.activation_functions import JumpReLU

    for name, jumps, skip in (("set", False, False), ("set_jump", True, False), ("set_skip", False, True)):
        threshold = torch.randn(UNITS, generator=torch.Generator().manual_seed(9))
        act = JumpReLU(threshold, 0.1) if jumps else torch.nn.functional.relu
        options = {"device": torch.device("cpu"), "dtype": torch.float32}
        made = theirs.SingleLayerTranscoder(D, UNITS, act, 0, skip_connection=skip, **options)
        randomize(made)
        if jumps:
            made.activation_function.threshold.data = threshold  # some are negative
        whole = theirs.TranscoderSet({0: made}, "hook_resid_mid", "hook_mlp_out")
        whole.to_safetensors(str(folder / name))
        said = {
            "model_kind": "transcoder_set",
            "feature_input_hook": "hook_resid_mid",
            "feature_output_hook": "hook_mlp_out",
        }
        (folder / name / "config.yaml").write_text(yaml.safe_dump(said))
        paths = {0: str(folder / name / "layer_0.safetensors")}
        loaded = theirs.load_transcoder_set(paths, "", "hook_resid_mid", "hook_mlp_out", **options)[0]
        yield name, loaded.encode(STATES), loaded(STATES)


def gemma_scope(folder: Path) -> Iterator[Given]:
    """By the readers of circuit-tracer."""
    from circuit_tracer.transcoder import single_layer_transcoder as theirs
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(11)
    shapes = {"W_enc": (D, UNITS), "W_dec": (UNITS, D), "b_enc": (UNITS,), "b_dec": (D,), "threshold": (UNITS,)}
    drawn = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    drawn["threshold"] = drawn["threshold"].abs()
    (folder / "gemma_scope/layer_0").mkdir(parents=True)
    path = folder / "gemma_scope/layer_0/params.npz"
    np.savez(path, **{name: tensor.numpy() for name, tensor in drawn.items()})
    loaded = theirs.load_gemma_scope_transcoder(str(path), 0, device=torch.device("cpu"))
    yield "gemma_scope", loaded.encode(STATES), loaded(STATES)
    place = folder / "gemma_scope_2/layer_0"
    place.mkdir(parents=True)
    saved = {name.lower(): tensor for name, tensor in drawn.items()}
    saved["affine_skip_connection"] = torch.randn(D, D, generator=generator)
    save_file(saved, place / "params.safetensors")
    (place / "config.json").write_text(json.dumps({"architecture": "jump_relu", "affine_connection": True}))
    loaded = theirs.load_gemma_scope_2_transcoder(str(place / "params.safetensors"), 0, device=torch.device("cpu"))
    yield "gemma_scope_2", loaded.encode(STATES), loaded(STATES)


def sparsify(folder: Path) -> Iterator[Given]:
    from sparsify import SparseCoder
    from sparsify.config import SparseCoderConfig

    for name, more in (("autoencoder", {}), ("transcoder", {"transcode": True, "skip_connection": True})):
        made = SparseCoder(D, SparseCoderConfig(num_latents=UNITS, k=K, **more))
        randomize(made)
        made.save_to_disk(folder / name / "layers.0.mlp")
        loaded = SparseCoder.load_from_disk(folder / name / "layers.0.mlp")
        chosen, ids, _ = loaded.encode(STATES)
        outputs = loaded.decode(chosen, ids)
        outputs = outputs if loaded.W_skip is None else outputs + STATES @ loaded.W_skip.T
        yield name, torch.zeros(len(STATES), UNITS).scatter(1, ids, chosen), outputs


if __name__ == "__main__":
    root = Path(sys.argv[1])
    with torch.no_grad():
        for peer in sys.argv[2:]:
            for name, m, y in globals()[peer](root):
                np.savez(root / f"{name}.npz", states=STATES.numpy(), coefficients=m.numpy(), outputs=y.numpy())
                print(name)
