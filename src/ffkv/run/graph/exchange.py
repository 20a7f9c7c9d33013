"""A graph as the JSON that the viewer of circuit-tracer reads. Neuronpedia takes the same form; no upload was tried.

Fields: `circuit_tracer/frontend/graph_models.py` and `utils/create_graph_files.py` of decoderesearch/circuit-tracer 0.5.0.
"""

import hashlib
import json
import re
from typing import Any

import numpy as np

from ffkv import __version__
from ffkv.run.graph.result import Graph
from ffkv.run.graph.settings import ANSWER
from ffkv.run.results.run import Run
from ffkv.run.trace.result import as_plain


def feature_number(layer: int, memory: int) -> int:
    """Returns the number that stands for a layer and a memory: Cantor's pairing function."""
    return (layer + memory) * (layer + memory + 1) // 2 + memory


def as_exchange(graph: Graph, run: Run, scan: str = "ffkv") -> dict[str, Any]:
    """Returns what a file of a graph holds.

    Weights of links are effects in logits. The influence of a node is, as there, what it and the stronger ones have together of the
    sizes of all effects. The embeddings of tokens are nodes without links: what they do to memories is not measured.

    Args:
        scan: name of the set of memories, as in `ffkv export --format circuit-tracer`.
    """
    last, above = int(graph.tokens["position"].iloc[-1]), str(len(run.anatomy.layers) + 1)
    sizes = graph.nodes["effect"].abs().to_numpy(float)
    order = np.argsort(-sizes, kind="stable")
    influence = np.zeros(len(sizes))
    influence[order] = np.cumsum(sizes[order]) / max(sizes.sum(), np.finfo(float).tiny)
    embeddings = [
        _node(f"E_{row.token_id}_{row.position}", "E", row.position, "embedding", row.position, clerp=row.token)
        for row in graph.tokens.itertuples()
    ]
    memories = [
        _node(
            f"{row.layer}_{row.memory}_{row.position}",
            str(row.layer),
            row.position,
            "cross layer transcoder",
            feature_number(row.layer, row.memory),
            clerp=f"{row.pattern or row.name} → {row.top_token}",
            influence=float(share),
            activation=float(row.coefficient),
        )
        for row, share in zip(graph.nodes.itertuples(), influence, strict=True)
    ]
    answer = _node(
        f"{above}_{graph.answer_id}_{last}",
        above,
        last,
        "logit",
        graph.answer_id,
        clerp=f'Output "{graph.answer}" rather than "{graph.wrong}" (p={graph.probability:.3f})',
        token_prob=graph.probability,
        is_target_logit=True,
    )
    names = {**dict(enumerate(each["node_id"] for each in memories)), ANSWER: answer["node_id"]}
    return {
        "metadata": {
            "slug": slug(graph),
            "scan": scan,
            "transcoder_list": [],
            "prompt_tokens": graph.tokens["token"].tolist(),
            "prompt": graph.text,
            "node_threshold": graph.share,
            "schema_version": 1,
            "info": {
                "generator": {"name": "ffkv", "version": __version__},
                "baseline": graph.baseline,
                "kept": as_plain(graph.kept),
            },
        },
        "qParams": {"pinnedIds": [], "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": ""},
        "nodes": [*embeddings, *memories, answer],
        "links": [
            {"source": names[row.source], "target": names[row.target], "weight": float(row.effect)}
            for row in graph.edges.itertuples()
        ],
    }


def slug(graph: Graph) -> str:
    """Returns a name for a graph, of small letters, digits and hyphens: the end of the prompt, and a hash of what was asked."""
    words = re.findall("[a-z0-9]+", graph.text.lower())
    asked = json.dumps([graph.text, graph.answer_id, graph.wrong_id, graph.baseline, graph.other, graph.share])
    return "-".join([*words[-5:], hashlib.sha256(asked.encode()).hexdigest()[:8]])


def _node(name: str, layer: str, position: int, kind: str, feature: int, **others: Any) -> dict[str, Any]:
    return {
        "node_id": name,
        "feature": int(feature),
        "layer": layer,
        "ctx_idx": int(position),
        "feature_type": kind,
        "token_prob": 0.0,
        "is_target_logit": False,
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "jsNodeId": name,
        "clerp": "",
        "influence": None,
        "activation": None,
    } | others
