"""What `replaced` changes is back afterwards, where it was."""

import types

import pytest

from ffkv.base.process.libraries import replaced


class Block:
    def forward(self) -> str:
        return "own"


def test_a_method_is_that_of_its_class_again_and_the_object_keeps_none():
    block = Block()
    with replaced((block, "forward", lambda: "other")):
        assert block.forward() == "other"
    assert block.forward() == "own" and vars(block) == {}


def test_what_an_object_had_itself_is_back_even_after_an_error():
    module = types.ModuleType("some")
    module.name = "before"
    with pytest.raises(ValueError), replaced((module, "name", "after")):
        raise ValueError
    assert module.name == "before"
