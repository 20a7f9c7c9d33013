"""The graph of a prompt as the JSON that the viewer of circuit-tracer reads. Neuronpedia takes the same form; no upload was tried.

Fields: `circuit_tracer/frontend/graph_models.py` and `utils/create_graph_files.py` of decoderesearch/circuit-tracer 0.5.0. What a viewer
does with them: `frontend/assets/index.html` and `attribution_graph/util-cg.js` there, and `graph/utils.ts` of hijohnnylin/neuronpedia.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import write_text
from ffkv.base.lookup import exists, read_json
from ffkv.base.version import version
from ffkv.branches.behaviours.words import ANSWER
from ffkv.run.graph.drawing import label
from ffkv.run.graph.result import Graph, GraphFormat
from ffkv.run.results.run import Run
from ffkv.run.results.text import number
from ffkv.run.trace.result import as_plain

LIST = "graph-metadata.json"


def feature_number(layer: int, memory: int) -> int:
    """Returns the number that stands for a layer and a memory: Cantor's pairing function."""
    return (layer + memory) * (layer + memory + 1) // 2 + memory


def as_exchange(graph: Graph, run: Run, slug: str = "") -> dict[str, Any]:
    """Returns what a file of a graph holds.

    Weights of links are effects in logits. The influence of a node is, as there, what it and the stronger ones have together of the
    sizes of all effects. There is no `node_threshold`: viewers hide the nodes whose influence is above it, and here all are kept. The
    embeddings of tokens and the errors of dictionaries are nodes without links: what they do to memories is not measured.

    `slug`: name of the graph; by default a name of small letters, digits and hyphens: the end of the prompt, and a hash of what was
    asked. Raises UserError if the prompt has one token: the viewer leaves out what is at more than two thirds of all tokens, so all
    nodes.
    """
    if len(graph.tokens) == 1:
        raise UserError(
            "The viewer of circuit-tracer shows no node of a prompt of one token. Write a longer prompt, or choose --format text, json or"
            " svg."
        )
    memories, answer = _memories(graph), _answer(graph, len(run.anatomy.layers) + 1)
    names = {**dict(enumerate(each["node_id"] for each in memories)), ANSWER: answer["node_id"]}
    embeddings = [
        _node(f"E_{row.token_id}_{row.position}", "E", row.position, "embedding", row.position, clerp=row.token)
        for row in graph.tokens.itertuples()
    ]
    errors = [
        _node(
            row.name,
            str(row.layer),
            row.position,
            "mlp reconstruction error",
            -1,
            f"error, effect {number(row.effect)}",
        )
        for row in graph.errors.itertuples()
    ]
    asked = json.dumps([graph.text, graph.answer_id, graph.wrong_id, graph.baseline, graph.other, graph.share])
    words = [*re.findall("[a-z0-9]+", graph.text.lower())[-5:], hashlib.sha256(asked.encode()).hexdigest()[:8]]
    metadata: dict[str, Any] = {"slug": slug or "-".join(words), "scan": "ffkv", "transcoder_list": []}
    metadata |= {"prompt_tokens": graph.tokens["token"].tolist(), "prompt": graph.text, "schema_version": 1}
    info = {"baseline": graph.baseline, "share": graph.share, "kept": as_plain(graph.kept)}
    metadata["info"] = {"generator": {"name": "ffkv", "version": version()}, **info}
    return {
        "metadata": metadata,
        "qParams": {"pinnedIds": [], "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": ""},
        "nodes": [*embeddings, *memories, *errors, answer],
        "links": [
            {"source": names[row.source], "target": names[row.target], "weight": float(row.effect)}
            for row in graph.edges.itertuples()
        ],
    }


def _memories(graph: Graph) -> list[dict[str, Any]]:
    sizes = graph.nodes["effect"].abs().to_numpy(float)
    order = np.argsort(-sizes, kind="stable")
    influence = np.zeros(len(sizes))
    influence[order] = np.cumsum(sizes[order]) / max(sizes.sum(), np.finfo(float).tiny)
    nodes = []
    for row, share in zip(graph.nodes.itertuples(), influence, strict=True):
        place = f"{row.layer}_{row.memory}_{row.position}", str(row.layer), row.position
        what = "cross layer transcoder", feature_number(row.layer, row.memory), label(row, write=str)
        nodes.append(_node(*place, *what, influence=float(share), activation=float(row.coefficient)))
    return nodes


def _answer(graph: Graph, layer: int) -> dict[str, Any]:
    """Returns the node of the answer, above the last layer."""
    last, above = int(graph.tokens["position"].iloc[-1]), str(layer)
    # The viewers read the probability behind the first "(p=".
    words = f'Output "{graph.answer}" rather than "{graph.wrong}"'.replace("(p=", "(p =")
    told = f"{words} (p={graph.probability:.3f})"
    place = f"{above}_{graph.answer_id}_{last}", above, last
    return _node(*place, "logit", graph.answer_id, told, token_prob=graph.probability, is_target_logit=True)


def check_name(file: Path) -> None:
    """Raises UserError if the viewer can ask for no file of this name, or what lists the graphs of the folder is no such list."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+\.json", file.name) or file.name == LIST:
        raise UserError(
            f"The viewer of circuit-tracer asks for a graph by the name of its file, and cannot ask for {file.name!r}. Name it with letters,"
            f" digits, - and _, and .json at the end; {LIST} lists the graphs."
        )
    _listed(file.parent)


def add_to_list(metadata: dict[str, Any], folder: Path) -> None:
    """Adds a graph to the list of its folder, in place of an earlier one of its name. Raises UserError if there is no such list."""
    found = _listed(folder)
    graphs = [*(graph for graph in found["graphs"] if graph["slug"] != metadata["slug"]), metadata]
    write_text(folder / LIST, json.dumps({**found, "graphs": graphs}, indent=2) + "\n")


def _listed(folder: Path) -> dict[str, Any]:
    path = folder / LIST
    try:
        found = read_json(path) if exists(path) else {"graphs": []}
        _ = {graph["slug"] for graph in found["graphs"]}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is no list of graphs ({error}). Write the graph into another folder.") from error
    return dict(found)


def _node(name: str, layer: str, position: int, kind: str, feature: int, clerp: str, **others: Any) -> dict[str, Any]:
    node: dict[str, Any] = {"node_id": name, "feature": int(feature), "layer": layer, "ctx_idx": int(position)}
    node |= {"feature_type": kind, "token_prob": 0.0, "is_target_logit": False, "run_idx": 0, "reverse_ctx_idx": 0}
    node |= {"jsNodeId": name, "clerp": clerp.replace("<", "‹")}  # viewers write it into their pages as HTML
    return node | {"influence": None, "activation": None, **others}


def _write(graph: Graph, run: Run, file: Path | None) -> str:
    return json.dumps(as_exchange(graph, run, file.stem if file else ""), allow_nan=False)


def _finish(graph: Graph, content: str, file: Path) -> str:
    add_to_list(json.loads(content)["metadata"], file.parent)
    above = bool(graph.nodes["layer"].any())
    return (
        "" if above else "Neuronpedia opens no graph without a memory above layer 0. The viewer of circuit-tracer does."
    )


FORMAT = GraphFormat(write=_write, check=check_name, finish=_finish)
