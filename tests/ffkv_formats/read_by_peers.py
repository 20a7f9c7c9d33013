"""Reads an export with the code of the tool that it is for. Runs in the environment of the peers: FORMAT FOLDER CHECKPOINT."""

import json
import sys
from pathlib import Path


def neuron_record(folder: Path, checkpoint: str) -> list:
    from neuron_explainer.activations.activations import ActivationRecordSliceParams, NeuronRecord
    from neuron_explainer.fast_dataclasses import loads

    found = []
    for path in sorted(folder.glob("*/*/*.json")):
        record = loads(path.read_bytes())
        assert isinstance(record, NeuronRecord)
        splits = ActivationRecordSliceParams(n_examples_per_split=1)
        for name in ("train", "calibration", "valid", "test"):
            assert getattr(record, f"{name}_activation_records")(splits)
        found.append([record.neuron_id.layer_index, record.neuron_id.neuron_index, record.max_activation])
    return found


def saedashboard(folder: Path, checkpoint: str) -> list:
    from sae_dashboard.neuronpedia.neuronpedia_dashboard import NeuronpediaDashboardBatch

    found = []
    for path in sorted(folder.glob("*/batch-*.json")):
        content = json.loads(path.read_text())
        batch = NeuronpediaDashboardBatch(**content)
        assert batch.to_dict() == content, "what the class writes is what it read"
        found += [[batch.layer, feature.feature_index, feature.activations[0].values] for feature in batch.features]
    return found


def circuit_tracer(folder: Path, checkpoint: str) -> list:
    from circuit_tracer.frontend.feature_models import Model

    features = [Model.model_validate_json(path.read_text()) for path in sorted(folder.glob("features/*/*.json"))]
    return [[feature.index, feature.act_max] for feature in features]


def graph(folder: Path, checkpoint: str) -> list:
    from circuit_tracer.frontend.graph_models import Link, Model, Node

    read = Model.model_validate_json((folder / "graph.json").read_text())
    links = [Link.model_validate(link) for link in read.links]
    last = int(read.nodes[-1].layer) - 1
    for node in read.nodes:  # each is what the tool itself makes
        position = node.ctx_idx
        if node.feature_type == "embedding":
            made = Node.token_node(position, int(node.node_id.split("_")[1]))
        elif node.feature_type == "logit":
            made = Node.logit_node(position, node.feature, "", last, node.is_target_logit, node.token_prob)
        elif node.feature_type == "mlp reconstruction error":
            made = Node.error_node(int(node.layer), position).model_copy(update={"node_id": node.node_id})
        else:
            made = Node.feature_node(
                int(node.layer), position, int(node.node_id.split("_")[1]), node.influence, node.activation
            )
        same = made.model_dump(exclude={"clerp", "jsNodeId"})
        assert node.model_dump(exclude={"clerp", "jsNodeId"}) == same, (node, made)
    names = {node.node_id for node in read.nodes}
    assert all({link.source, link.target} <= names for link in links)
    return [[node.node_id for node in read.nodes if node.feature_type != "embedding"], len(links)]


def delphi(folder: Path, checkpoint: str) -> list:
    from delphi.config import ConstructorConfig, SamplerConfig
    from delphi.latents import LatentDataset
    from transformers import AutoTokenizer

    names = sorted(path.name for path in (folder / "latents").iterdir())
    dataset = LatentDataset(
        raw_dir=str(folder / "latents"),
        sampler_cfg=SamplerConfig(n_examples_train=1, n_examples_test=1, n_quantiles=1, train_type="top"),
        constructor_cfg=ConstructorConfig(min_examples=1, n_non_activating=0, example_ctx_len=32),
        tokenizer=AutoTokenizer.from_pretrained(checkpoint),
        modules=names,
    )
    found = []
    for buffer in dataset.buffers:
        for data in buffer:
            largest = float(data.activation_data.activations.max())
            found.append([data.module, data.latent.latent_index, largest])
    records = [record for record in dataset if record is not None]
    assert records, "some latents have enough windows"
    for record in records[:20]:
        assert record.train[0].str_tokens is not None
    return found


def circuitsvis(folder: Path, checkpoint: str) -> list:
    import numpy as np
    from circuitsvis.activations import text_neuron_activations

    content = json.loads((folder / "circuitsvis.json").read_text())
    content["activations"] = [np.array(own) for own in content["activations"]]
    html = str(text_neuron_activations(**content))
    assert html.count("</script>") == 1, "no token ends the script"
    return [len(html)]


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1].replace("-", "_")](Path(sys.argv[2]), sys.argv[3])))
