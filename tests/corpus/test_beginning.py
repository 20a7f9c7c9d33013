"""What precedes every sentence: as the tokenizer does it, else BOS, else what separates documents."""

import pytest
from support import word_tokenizer
from tokenizers import processors

from ffkv.base.errors import UserError
from ffkv.corpus.beginning import configured_bos, find_beginning
from ffkv.model.checkpoint.config import read_config


def tokenizer(bos=True, **special):
    """Ids: <bos> 0, </s> 1, a 2. `special` names its special tokens; others are plain words to it."""
    made = word_tokenizer(["<bos>", "</s>", "a"], bos=bos)
    made.bos_token = None
    for name, token in special.items():
        setattr(made, name, token)
    return made


def test_what_the_tokenizer_puts_there_itself():
    beginning = find_beginning(tokenizer(bos_token="<bos>"), "auto")
    assert beginning.ids == [0]
    assert beginning.reason == "<bos> precedes every sentence: the tokenizer puts it there."


def test_a_tokenizer_that_ends_sentences_too_puts_only_its_first_ones_in_front():
    both = tokenizer(bos_token="<bos>")
    both.backend_tokenizer.post_processor = processors.TemplateProcessing(
        "<bos> $A </s>", None, [("<bos>", 0), ("</s>", 1)]
    )
    assert find_beginning(both, "auto").ids == [0]


def test_a_tokenizer_that_puts_nothing_there_lends_its_bos_token():
    """GPT-2 and Pythia: their BOS token is <|endoftext|>, and their tokenizers do not use it."""
    beginning = find_beginning(tokenizer(bos=False, bos_token="</s>"), "auto")
    assert beginning.ids == [1]
    assert "</s> precedes every sentence: it is the BOS token." in beginning.reason
    assert "corpus.bos 'never'" in beginning.reason


@pytest.mark.parametrize(
    "special, configured, expected",
    [
        ({"eos_token": "</s>", "pad_token": "<bos>"}, 0, [0]),  # Qwen: the config names it, the tokenizer pads with it
        ({"eos_token": "</s>"}, 2, [1]),  # the config names a plain word: its default, which means nothing
        ({"eos_token": "</s>"}, 50_256, [1]),
        ({"eos_token": "</s>"}, None, [1]),
        ({}, None, []),
        ({}, 2, []),
    ],
)
def test_without_a_bos_token_the_token_that_separates_documents(special, configured, expected):
    beginning = find_beginning(tokenizer(bos=False, **special), "auto", configured)
    assert beginning.ids == expected
    assert ("separates documents" in beginning.reason) == bool(expected)


@pytest.mark.parametrize("bos", [True, False])
def test_always_and_never(bos):
    assert find_beginning(tokenizer(bos, bos_token="<bos>"), "always").ids == [0]
    assert find_beginning(tokenizer(bos, bos_token="<bos>"), "never").ids == []


def test_always_needs_a_bos_token():
    with pytest.raises(UserError, match=r"corpus\.bos is 'always', but the tokenizer has no BOS token"):
        find_beginning(tokenizer(), "always")


@pytest.mark.parametrize("content", [None, "", "{"])
def test_a_config_that_cannot_be_read_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"config\.json"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    "config, expected",
    [
        ({"bos_token_id": 3}, 3),
        ({"text_config": {"bos_token_id": 4}, "bos_token_id": 3}, 4),
        ({}, None),
        ({"bos_token_id": None}, None),
        ({"bos_token_id": [1, 2]}, None),
    ],
)
def test_the_config_names_one_token_or_none(config, expected):
    assert configured_bos(config) == expected


def test_a_token_by_name():
    beginning = find_beginning(tokenizer(bos_token="<bos>"), "</s>")
    assert beginning.ids == [1] and "</s> precedes every sentence, as corpus.bos says" in beginning.reason
    with pytest.raises(UserError, match=r"corpus\.bos is '<eot>', which the tokenizer does not have.*<bos>"):
        find_beginning(tokenizer(bos_token="<bos>"), "<eot>")


def test_the_lowest_loss_decides_only_where_the_tokenizer_does_not():
    losses = {"<bos>": 4.1, "</s>": 3.9}
    beginning = find_beginning(tokenizer(bos=False, bos_token="<bos>"), "auto", losses=losses)
    assert beginning.ids == [1]
    assert "lowest mean loss on the passages of the proof (<bos> 4.1, </s> 3.9 nats per token)" in beginning.reason
    assert find_beginning(tokenizer(bos=False, bos_token="<bos>"), "auto", losses={"<bos>": 4, "</s>": 4}).ids == [0]
    assert find_beginning(tokenizer(bos_token="<bos>"), "auto", losses=losses).ids == [0]
    assert find_beginning(tokenizer(bos=False, bos_token="<bos>"), "always", losses=losses).ids == [0]
