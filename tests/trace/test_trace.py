"""Traces against brute force: sums, probabilities, and memories that are switched off in the weights themselves."""

import pytest

KINDS = ("gpt2", "llama", "mixtral", "gpt-neox", "gemma2", "fairseq")


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_add_up(traced, kind):
    run = traced(kind)
    trace = run.trace("w5 w6 w7 w8 w9", device="cpu", memories=5)
    print(trace.tokens, trace.layers.T, trace.contributions, trace.remainders, trace.sums, trace.final, trace.logits_deviation)
    assert trace.deviation < 1e-4
