"""The graph of a prompt for the viewer of circuit-tracer, and what that and Neuronpedia show of it."""

import json
from collections import Counter
from dataclasses import replace

import pandas as pd
import pytest
from click.testing import CliRunner

import ffkv
from ffkv.cli import ffkv as ffkv_command
from ffkv.run.graph.drawing import label
from ffkv_formats.circuit_tracer_graphs import FORMAT, as_exchange, check_name
from tests.run.graph.test_written import asked


def test_nodes_and_links(chain, without_patterns):
    found = asked(chain)
    content = as_exchange(found, chain)
    # The fields of circuit_tracer/frontend/graph_models.py, 0.5.0; `info` is of Neuronpedia's schema.
    assert {*content} == {"metadata", "qParams", "nodes", "links"}
    assert {"slug", "scan", "transcoder_list", "prompt_tokens", "prompt", "schema_version"} <= {*content["metadata"]}
    names = [node["node_id"] for node in content["nodes"]]
    assert len({*names}) == len(names) == len(found.tokens) + len(found.nodes) + 1
    assert {end for link in content["links"] for end in (link["source"], link["target"])} <= {*names}
    kinds = [node["feature_type"] for node in content["nodes"]]
    assert kinds == ["embedding"] * len(found.tokens) + ["cross layer transcoder"] * 3 + ["logit"]
    assert content["nodes"][-1]["layer"] == "4" and content["nodes"][-1]["is_target_logit"]
    influence = sorted(node["influence"] for node in content["nodes"] if node["influence"] is not None)
    assert influence[-1] == pytest.approx(1)
    assert (
        json.loads(FORMAT.write(asked(chain, answer="h", wrong="b"), chain, None))["metadata"]["info"]["kept"] is None
    )
    signs = found.nodes.assign(coefficient=[2.0, -3.0, 0.0])
    labels = [
        node["clerp"].replace("‹", "<") for node in as_exchange(replace(found, nodes=signs), chain)["nodes"][-4:-1]
    ]
    assert labels == [label(row) for row in signs.itertuples()] and "(m < 0)" in labels[1]


def test_errors_of_dictionaries_have_no_links(chain, without_patterns):
    errors = pd.DataFrame({"name": ["L2.error@1"], "layer": [2], "position": [1], "effect": [-0.5]})
    content = as_exchange(replace(asked(chain), errors=errors), chain)
    nodes = {node["node_id"]: node for node in content["nodes"]}
    own = nodes["L2.error@1"]
    assert own["feature_type"] == "mlp reconstruction error" and own["ctx_idx"] == 1 and own["layer"] == "2"
    assert not [link for link in content["links"] if "L2.error@1" in link.values()]
    assert seen_in_circuit_tracer(content) == {*nodes} == seen_in_neuronpedia(content)


def seen_in_circuit_tracer(content):
    """Returns the names of the nodes that the viewer draws: the rules of `formatData` in attribution_graph/util-cg.js, and of index.html."""
    threshold = content["metadata"].get("node_threshold")
    nodes = [
        node
        for node in content["nodes"]
        if not isinstance(threshold, float)  # no slider, and nothing is left out
        or node["feature_type"] in ("embedding", "logit")
        or (node["influence"] or 0) <= threshold
    ]
    of_feature = Counter((node["layer"], node["feature"], node["ctx_idx"]) for node in nodes)
    most = len(content["metadata"]["prompt_tokens"]) * 2 / 3
    return {node["node_id"] for node in nodes if of_feature[node["layer"], node["feature"], node["ctx_idx"]] <= most}


def seen_in_neuronpedia(content):
    """Returns the names of the nodes that graph/utils.ts keeps with its slider at any place; None if it throws "No layer found"."""
    layers = [
        float(node["layer"]) for node in content["nodes"] if node["feature_type"] != "logit" and node["layer"] != "E"
    ]
    if not max(layers, default=0):
        return None
    if not content["metadata"].get("node_threshold"):  # the slider filters nothing
        return {node["node_id"] for node in content["nodes"]}
    return {node["node_id"] for node in content["nodes"] if not node["influence"]}


@pytest.mark.parametrize("share", [0.01, 0.3, 0.8, 1.0])
def test_viewers_show_the_whole_graph(chain, without_patterns, share):
    found = asked(chain, share=share)
    content = as_exchange(found, chain)
    names = {node["node_id"] for node in content["nodes"]}
    assert len(found.nodes) and seen_in_circuit_tracer(content) == names == seen_in_neuronpedia(content)
    assert content["metadata"]["info"]["share"] == share


def test_a_prompt_that_the_viewer_leaves_out_is_refused(chain, without_patterns):
    """A model without a token in front of each text has prompts of one token."""
    found = ffkv.graph(chain, "a", answer="b", wrong="h", baseline="zero", device="cpu")
    assert len(found.tokens) == 2 and seen_in_circuit_tracer(as_exchange(found, chain))
    with pytest.raises(ffkv.UserError, match="of one token"):
        as_exchange(replace(found, tokens=found.tokens.tail(1)), chain)


def test_labels_are_no_html_and_their_probability_is_found(chain, without_patterns):
    found = asked(chain)
    found.nodes["pushes"] = "<img src=x onerror=alert(1)>"
    content = as_exchange(replace(found, answer="(p=9)", wrong="<b>"), chain)
    labels = [node["clerp"] for node in content["nodes"]]
    assert not any("<" in label for label in labels) and "‹img src=x" in labels[-2]
    assert labels[-1].split("(p=")[1].split(")")[0] == f"{found.probability:.3f}"  # as both viewers read it


def test_the_file_is_one_that_the_viewer_opens(chain, without_patterns, tmp_path):
    """circuit-tracer's page reads data/graph-metadata.json, and then graph_data/<slug>.json of the same folder."""
    command = [
        "graph",
        str(chain.folder),
        "d c a",
        *["--answer", "b", "--wrong", "h", "--device", "cpu", "--format", "graph"],
    ]
    for name in ("first.json", "second.json", "first.json"):
        done = CliRunner().invoke(ffkv_command, [*command, "--output", str(tmp_path / name)], catch_exceptions=False)
        assert done.exit_code == 0 and "Neuronpedia" not in done.output
    listed = json.loads((tmp_path / "graph-metadata.json").read_text())["graphs"]
    assert [each["slug"] for each in listed] == ["second", "first"]
    for each in listed:
        assert json.loads((tmp_path / f"{each['slug']}.json").read_text())["metadata"] == each
    for name in ("a b.json", "graph.txt", "é.json", "graph-metadata.json", ".json"):
        with pytest.raises(ffkv.UserError, match="cannot ask for"):
            check_name(tmp_path / name)
    for content in ("{", "[]", '{"graphs": 3}', '{"graphs": [{}]}'):
        (tmp_path / "graph-metadata.json").write_text(content)
        with pytest.raises(ffkv.UserError, match="no list of graphs"):
            check_name(tmp_path / "first.json")


def test_neuronpedia_opens_no_graph_of_layer_0_and_that_is_said(chain, without_patterns, tmp_path):
    options = ["--answer", "o", "--wrong", "h", "--baseline", "zero", "--device", "cpu", "--format", "graph"]
    found = asked(chain, answer="o")
    assert set(found.nodes["layer"]) == {0} and seen_in_neuronpedia(as_exchange(found, chain)) is None
    command = ["graph", str(chain.folder), "d c a", *options, "--output", str(tmp_path / "g.json")]
    assert "Neuronpedia opens no graph" in CliRunner().invoke(ffkv_command, command, catch_exceptions=False).output
