"""What is wrong with a checkpoint, in words for a person: before its weights are read, and from what a library raised.

Weights are published in several forms: plain, quantised, as an adapter, as GGUF. What can be read is said here.
"""

import contextlib
import re
from pathlib import Path
from typing import Any

from ffkv.base.doors import load, load_all
from ffkv.base.errors import UserError
from ffkv.base.fault import causes, denied, is_out_of_memory, out_of_memory
from ffkv.base.hub.commit import Commit, may_be_on_hub
from ffkv.base.hub.fetch import cached_names, choose_config_files, local_model, tell_damage
from ffkv.base.hub.messages import explain
from ffkv.base.lookup import exists, files_in, is_dir, is_file, read_json
from ffkv.base.settings import EMBEDDED, Model
from ffkv.base.settings.messages import shown
from ffkv.model.checkpoint.readers import reader_of, readers

MOST_LAYERS = 1000  # with more, only making the modules would take minutes
LAYER_NAMES = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
# Names of classes that predict the next token, beside those that transformers lists: of their own code, of models with a
# part for images, of a decoder with an encoder.
CAUSAL = re.compile(r"ForCausalLM|LMHead|ForConditionalGeneration|DoubleHeads")
# Methods whose weights transformers turns back into plain ones by itself, and what tells it to.
UNPACKED = {"mxfp4": "Mxfp4Config", "fp8": "FineGrainedFP8Config", "mxfp8": "FineGrainedFP8Config"}
# What words of libraries mean.
MEANINGS = {
    "weights_only": "its weights are a pickle that is damaged or names code, and ffkv runs none. Save them as safetensors.",
    "is GGUF v(16777216|33554432|50331648);": "its numbers begin with the largest byte (big-endian), and transformers reads"
    " those that begin with the smallest. Turn them with `gguf-convert-endian FILE little`.",
    "Unknown gguf model_type: mistral ": "transformers takes a file of llama with the name mistral (general.name) for an"
    " architecture of its own, which the form does not have. Give it another name: `gguf-new-metadata --general-name NAME`.",
}


def check_checkpoint(checkpoint: str, gguf: str = "") -> None:
    """Refuses a name that is neither a local folder nor a possible hub id, before the hub is asked.

    The `UserError` says which of the two the name looks like, or which package is missing. `gguf`: the setting `model.gguf`.
    """
    if gguf:
        load("rules", "gguf")
    path, names = Path(checkpoint), list[str]()
    try:
        path.stat()
        names = [file.name for file in files_in(path)]
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # a folder above that may not be entered, a name that no file can have
        raise UserError(
            f"The checkpoint {checkpoint[:200]} cannot be read: {getattr(error, 'strerror', error)}."
        ) from error
    if checkpoint == EMBEDDED and not exists(path):
        raise UserError(
            "The embedded model is not trained yet. Run snakemake or `ffkv train`, then name the checkpoint folder that it wrote."
        )
    if is_dir(path) and gguf:
        check_gguf(checkpoint, gguf, names)
    elif is_dir(path):
        refuse_other_forms(checkpoint, path, names)
        if not is_file(path / "config.json") and not reader_of(path):
            others = "".join(f" nor {reader.files}" for reader in readers().values())
            broken = "".join(f" {error}" for error in load_all("readers")[1].values())
            raise UserError(
                f"The folder {checkpoint} is not a checkpoint: it has neither config.json (transformers){others}.{broken}"
            )
    elif exists(path) or not may_be_on_hub(checkpoint):
        raise UserError(
            f"There is no checkpoint folder {checkpoint}{', but a file' * exists(path)}. Check model.checkpoint. A relative path"
            " starts in the working directory; that of a finished run may also start in the folder that holds its `results`."
        )


def unpacking(config: dict[str, Any], checkpoint: str) -> dict[str, Any]:
    """Returns the arguments with which `from_pretrained` turns quantised weights into plain ones; {} for plain ones.

    Raises UserError if the weights are quantised by a method that leaves them packed.
    """
    import transformers

    told = config.get("quantization_config") or ""
    method = str(told.get("quant_method", "unknown method") if isinstance(told, dict) else told)
    if not method:
        return {}
    if method not in UNPACKED:
        raise UserError(
            f"The checkpoint {checkpoint} is quantised ({method}). ffkv reads the weights themselves, and unpacks"
            f" {', '.join(UNPACKED)} only: use the unquantised model that it was made from."
        )
    return {"quantization_config": getattr(transformers, UNPACKED[method])(dequantize=True)}


def refuse_other_forms(checkpoint: str, folder: Path, names: list[str], on_hub: bool = False) -> None:
    """Refuses a folder or repository that holds no model of its own, by the names of its files.

    `checkpoint`: as in the settings. `folder`: where its files are; one that does not exist is left to others. `names`: names of
    its files, of which some may be elsewhere. `on_hub`: whether it is a repository. Raises UserError if it holds an adapter, a
    model in the GGUF form, or (a repository) no model; says what to do.
    """
    if "config.json" in names:
        return
    if "adapter_config.json" in names:
        base = ""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # the sentence does without it
            config = read_json(folder / "adapter_config.json", object_pairs_hook=dict)
            base = str(config["base_model_name_or_path"] or "")
        raise UserError(
            f"{checkpoint} is a PEFT adapter{f' of {base}' if base else ''}, not a whole model. Set model.checkpoint to"
            f" {base or 'the model that it adapts'} and model.adapter to {checkpoint}."
        )
    if packed := _gguf_files(names):
        raise UserError(
            f"{checkpoint} holds a model in the GGUF form ({shown(packed)[1:-1]}). Set model.gguf to the file that is to be"
            " read, or use the model that it was made from, as safetensors."
        )
    if on_hub:
        raise UserError(
            f"{checkpoint} is not a checkpoint: its repository has no config.json. It has {', '.join(names[:10]) or 'no files'}"
            f"{f' and {len(names) - 10} more' if len(names) > 10 else ''}."
        )


def check_gguf(checkpoint: str, name: str, names: list[str]) -> None:
    """Refuses a file in the GGUF form that does not exist, or is only a part of a model.

    `checkpoint`: as in the settings. `name`: the setting `model.gguf`. `names`: names of the files that the folder or repository
    has. The `UserError` names the files that there are.
    """
    if name not in names:
        there = shown(_gguf_files(names))[1:-1] or "none"
        raise UserError(f"{checkpoint} has no file {name}. Its files in the GGUF form: {there}. Set model.gguf.")
    if re.search(r"-\d{5}-of-\d{5}\.gguf$", name.lower()) and "-00001-of-00001." not in name:
        raise UserError(
            f"{checkpoint}: {name} is one of several parts of a model, which transformers does not read. Put them together"
            " with `llama-gguf-split --merge`, or use the model that it was made from."
        )


def _gguf_files(names: list[str]) -> list[str]:
    return sorted(name for name in names if name.lower().endswith(".gguf"))


def refuse_unreadable(settings: Model, commit: Commit) -> dict[str, Any]:
    """Refuses what ffkv cannot read before any weight is fetched. Returns how quantised weights are unpacked."""
    from transformers import GgufConfig, PreTrainedConfig

    folder = Path(local_model(commit, choose_config_files))
    of_hub = cached_names(commit)
    names = [file.name for file in files_in(folder)] if of_hub is None else of_hub
    if settings.gguf:
        check_gguf(settings.checkpoint, settings.gguf, names)
        return {"quantization_config": GgufConfig(dequantize=True)}
    refuse_other_forms(settings.checkpoint, folder, names, of_hub is not None)
    config: Any = {}
    with contextlib.suppress(Exception):  # whatever is wrong with it, the caller meets it and tells
        config, _ = PreTrainedConfig.get_config_dict(settings.checkpoint, revision=commit.read_at)
    config = config if isinstance(config, dict) else {}
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    counts = [(part.get(name), name) for name in LAYER_NAMES for part in parts]
    if absurd := [(count, name) for count, name in counts if isinstance(count, int) and count > MOST_LAYERS]:
        count, name = absurd[0]
        raise UserError(
            f"The config of {settings.checkpoint} names {count:,} layers ({name}). ffkv reads models of up to {MOST_LAYERS:,} layers."
        )
    _refuse_other_classes(settings, config)
    return unpacking(config, settings.checkpoint)


def _refuse_other_classes(settings: Model, config: dict[str, Any]) -> None:
    """Refuses a checkpoint that was saved by a class without a language model's head, such as a classifier."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = config.get("architectures") or []
    own_code = settings.trust_remote_code and "AutoModelForCausalLM" in (config.get("auto_map") or {})
    known = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()}
    if names and not own_code and not any(name in known or CAUSAL.search(str(name)) for name in names):
        raise UserError(
            f"The checkpoint {settings.checkpoint} is a {names[0]} (`architectures` in its config.json), which is not a causal"
            " language model: it predicts no next token. Use the checkpoint of the language model that it was made from."
        )


def explain_failure(error: Exception, commit: Commit) -> str:
    """Says what is wrong with a checkpoint, from what a library raised. Raises: see `words_of`."""
    if "trust_remote_code" in str(error):
        return "it brings code of its own, which is not run. If you have read it and trust it, set model.trust_remote_code."
    if not commit.commit:
        return _cannot_be_looked_up(Path(commit.repository)) or cannot_be_opened(error) or words_of(error)
    of_files = tell_damage(commit) or cannot_be_opened(error)
    return of_files or explain(error, "model", commit.repository, commit.revision) or words_of(error)


def _cannot_be_looked_up(folder: Path) -> str:
    """Says why a file of a folder cannot be looked up, else "". transformers takes such a file for one that is not there."""
    try:
        for file in folder.iterdir():
            file.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as broken:
        return f"{broken.filename}: {broken.strerror}."
    return ""


def cannot_be_opened(error: Exception) -> str:
    """Says which file is there and cannot be opened, else "". safetensors calls every such file missing, without the reason."""
    for each in causes(error):
        file = str(each).partition("No such file or directory: ")[2]
        if isinstance(each, FileNotFoundError) and each.errno is None and file and exists(file):
            return f"{file} is there, but it cannot be opened. Check the memory and the disks, then start the same command again."
    return ""


def words_of(error: Exception) -> str:
    """Returns the words of a library's exception, on one line, and those of the system if the machine denied something.

    Raises UserError if it says that the memory does not suffice: then no file is to blame.
    """
    if is_out_of_memory(error):
        raise out_of_memory(error) from error
    for words, meaning in MEANINGS.items():
        if re.search(words, str(error)):
            return meaning
    text = " ".join(str(error).split())[:400]
    if isinstance(error, KeyError) or not text:  # says nothing by itself
        text = f"{type(error).__name__} {text}".strip()
    system = denied(error)
    return text if system in text else f"{text} ({system})"
