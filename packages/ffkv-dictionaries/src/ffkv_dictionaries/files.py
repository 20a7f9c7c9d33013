"""Files around the tensors: where dictionaries lie below a folder, of which layer each is, and what its config says."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from ffkv.base.errors import UserError, one_line
from ffkv.base.lookup import find, is_dir, is_file, parse_json, read_bytes

PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pkl.gz", ".pickle", ".ckpt")
AGAIN = "Fetch it again, or save it again with the code that trained it."
LARGEST = 2**20  # bytes of a config
DEEPEST = 4  # folders between a path and a dictionary: transcoder/layer_5/width_16k/average_l0_71/params.npz
LARGEST_NUMBER = 2**62  # in a config
NESTED = 20  # mappings and lists in each other in a config of YAML
LAYER = re.compile(r"(?:^|[./_-])(?:layers?|blocks?|h)[._](\d{1,6})(?=$|[./_-])")
SET_CONFIG = "config.yaml"  # of a set of circuit-tracer
SEVERAL_LAYERS = (
    "is of a cross-layer transcoder: a unit of it writes into several layers, and a memory of ffkv has one value, which"
    " it adds in its own layer. Take a set with one transcoder per layer."
)


def find_below(path: Path, *names: str) -> list[Path]:
    """Lists the files with one of these names (or patterns) in a folder and below it; none if `path` is no folder."""
    return [file for depth in range(DEEPEST + 1) for name in names for file in find(path, "*/" * depth + name)]


def layer_in(*names: Any) -> int | None:
    """The layer that the first name with one tells, such as "blocks.5.hook_mlp_out", "layers.5.mlp", "layer_5"; None if none."""
    found = (LAYER.search(name) for name in names if isinstance(name, str))
    return next((int(match[1]) for match in found if match), None)


def layer_at(place: Path, block: int | None, hook: Any) -> int | None:
    """Returns the layer whose output a hook reads, from the number of its block, which is None if nothing tells it.

    The residual stream before a block is that behind the block before. Raises UserError if no layer writes what the hook reads.
    """
    hook = str(hook)
    if "resid_mid" in hook:
        raise UserError(
            f"{place} reads {hook[:80]}, the residual stream behind attention and before the feed-forward layer, which no"
            " feed-forward layer writes. Take a dictionary of resid_post, or of resid_pre."
        )
    if "hook_embed" in hook or ("resid_pre" in hook and block == 0):
        raise UserError(f"{place} reads {hook[:80]}, the embeddings: no feed-forward layer is before them.")
    return block if block is None or "resid_pre" not in hook else block - 1


def by_layer(places: Iterable[Path], layer_of: Callable[[Path], int | None]) -> dict[int | None, Path]:
    """Sorts dictionaries by their layers.

    Returns the number of each layer, or None for a single dictionary that tells no layer, with its file or folder. Raises
    UserError if two are of the same layer, or one of several tells none.
    """
    places, found = [*places], dict[int | None, Path]()
    for place in places:
        layer = layer_of(place)
        if layer is None and len(places) > 1:
            raise UserError(
                f"{place} does not tell its layer, and others lie beside it. Name the folder of one dictionary."
            )
        if layer in found:
            raise UserError(f"{found[layer]} and {place} are both of layer {layer}. Name the folder of one of them.")
        found[layer] = place
    return dict(sorted(found.items())) if len(found) > 1 else found


def file_in(folder: Path, *names: str) -> Path:
    """The first of these files that lies in a folder. Raises UserError if none does, and names a pickle that lies there."""
    for name in names:
        if is_file(folder / name):
            return folder / name
    refuse_pickles(folder, f"There is no {names[0]} in {folder}, but ")
    raise UserError(f"There is no {' or '.join(names)} in {folder}. {AGAIN}")


def refuse_pickles(path: Path, before: str = "") -> None:
    """Raises UserError if a path is a pickle, or a folder that holds one."""
    if pickle := next(iter(pickles_at(path)), None):
        raise UserError(
            f"{before}{pickle} is a pickle, which can run code, and ffkv opens none. Load it with the code that wrote it, and"
            " save its tensors in the same form by safetensors.torch.save_file."
        )


def pickles_at(path: Path) -> list[Path]:
    """The path itself if it has the name of a pickle, or those in the folder and in its folder of checkpoints."""
    if not is_dir(path):
        return [path] if path.name.endswith(PICKLES) else []
    return [file for pattern in ("*", "checkpoints/*") for file in find(path, pattern) if file.name.endswith(PICKLES)]


def read_config(path: Path, optional: bool = False) -> dict[str, Any]:
    """Reads a config of JSON, or of YAML if its name ends so. `optional`: without a file, it says nothing.

    Raises UserError if it cannot be read or holds no mapping.
    """
    if optional and not is_file(path):
        return {}
    try:
        text = read_bytes(path, LARGEST)
        said = _parse_yaml(text) if path.suffix in (".yaml", ".yml") else parse_json(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error, 200)}. {AGAIN}") from error
    if not isinstance(said, dict) or not all(isinstance(key, str) for key in said):
        raise UserError(f"{path} holds no mapping from names to values. {AGAIN}")
    return said


def _parse_yaml(text: bytes) -> Any:
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > NESTED:  # time and memory beyond the size of the text
            raise ValueError("it has aliases or is nested too deeply, as no such file is")
    node = yaml.compose(text, yaml.SafeLoader)
    keys = [key.value for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
    if len({*map(str, keys)}) < len(keys):
        raise ValueError("a key occurs twice")
    return yaml.safe_load(text)


def names_files(folder: Path) -> bool:
    """Whether a folder is a set of circuit-tracer whose config names the files. They may be of other forms."""
    try:
        return read_config(folder / SET_CONFIG, optional=True).get("transcoders") is not None
    except UserError:  # of others, who may have aliases
        return False


def value_of(
    path: Path, said: dict[str, Any], key: str, kind: type, default: Any = None, lowest: float | None = None
) -> Any:
    """A value of a config. `kind`: bool, int, float or str; an int is a float, too. `default`: None if it must be there.

    Configs say null where the code that wrote them takes its default.

    Raises UserError if it is missing, of another kind, not finite, too large, or below `lowest`.
    """
    value = default if said.get(key) is None else said[key]
    right = isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))
    if right and kind in (int, float):
        right = abs(value) < LARGEST_NUMBER and (lowest is None or value >= lowest)
    if not right:
        what = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}[kind]
        least = "" if lowest is None else f" of at least {lowest:g}"
        raise UserError(f"{path}: {key} is {value!r:.80}, and must be {what}{least}. {AGAIN}")
    return value


def sizes_said(path: Path, said: dict[str, Any], **keys: str) -> dict[str, tuple[int, str]]:
    """The sizes that a config says of its tensors, each with who says it, see `tensors.read`. `keys`: of "n" and "d"."""
    return {
        letter: (value_of(path, said, key, int, lowest=1), f"{key} of {path.name}")
        for letter, key in keys.items()
        if said.get(key) is not None
    }


def told_by(reads: Any, writes: Any = None) -> str:
    """Says where a dictionary reads and writes, for a person. `writes`: None if it is where it reads. Both may be anything."""
    reads, writes = (each[:200] if isinstance(each, str) and each.isprintable() else "" for each in (reads, writes))
    if not reads:
        return ""
    return f"reads {reads}, writes {writes}" if writes and writes != reads else f"reads and writes {reads}"
