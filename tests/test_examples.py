"""The examples in the docstrings of the public names, run on the finished run of configs/tiny.yaml."""

import doctest
from typing import Any

import pytest
import torch

import ffkv

WITHOUT = {"WHOLE", "settings"}  # a value and a module: `Part` and every step show them
EXAMPLES = {
    test.name: test
    for name in ffkv.__all__
    if name not in WITHOUT
    for test in doctest.DocTestFinder().find(getattr(ffkv, name), name, globs={"ffkv": ffkv, "torch": torch})
    if test.examples
}


def test_every_public_name_has_an_example(subtests):
    for name in sorted({*ffkv.__all__} - WITHOUT):
        with subtests.test(name=name):
            assert name in EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_what_it_shows(name: str, own_tiny: Any, undrawn, monkeypatch):
    (own_tiny / "results/other").symlink_to("tiny")
    monkeypatch.chdir(own_tiny)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(EXAMPLES[name], out=said.append)
    assert not runner.failures, "".join(said)
