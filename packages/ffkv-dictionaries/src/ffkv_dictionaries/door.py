"""What ffkv finds: a `ffkv.model.dictionary.forms.Form` for each way in which dictionaries are written."""

from pathlib import Path

from ffkv.base.errors import UserError
from ffkv.model.dictionary.forms import Dictionary, Form
from ffkv_dictionaries import saelens, scopes, sets
from ffkv_dictionaries.files import pickles_at, refuse_pickles

SAELENS = Form("cfg.json and sae_weights.safetensors (SAELens)", saelens.is_saelens, saelens.layers, saelens.load)
GEMMA_SCOPE = Form("params.npz (Gemma Scope)", scopes.is_gemma_scope, scopes.gemma_layers, scopes.load_gemma)
GEMMA_SCOPE_2 = Form(
    "config.json and params.safetensors (Gemma Scope 2)",
    scopes.is_gemma_scope_2,
    scopes.gemma_2_layers,
    scopes.load_gemma_2,
)
LLAMA_SCOPE = Form(
    "hyperparams.json and checkpoints/final.safetensors (Llama Scope)",
    scopes.is_llama_scope,
    scopes.llama_layers,
    scopes.load_llama,
)
CIRCUIT_TRACER = Form(
    "config.yaml and layer_<i>.safetensors (circuit-tracer)", sets.is_set, sets.set_layers, sets.load_set
)
SPARSIFY = Form(
    "folders such as layers.5.mlp with cfg.json and sae.safetensors (sparsify)",
    sets.is_sparsify,
    sets.sparse_layers,
    sets.load_sparse,
)
READ = SAELENS, GEMMA_SCOPE, GEMMA_SCOPE_2, LLAMA_SCOPE, CIRCUIT_TRACER, SPARSIFY


def _is_pickle_alone(path: Path) -> bool:
    return bool(pickles_at(path)) and not any(form.reads(path) for form in READ)


def _refuse(path: Path) -> Dictionary:
    refuse_pickles(path)
    raise UserError(f"There is no pickle in {path}, and nothing else that is read.")


def _refuse_layers(path: Path) -> dict[int | None, Path]:
    _refuse(path)
    return {}


PICKLES = Form("no pickles, such as *.pt and *.bin", _is_pickle_alone, _refuse_layers, _refuse)
