"""What precedes every sentence: as the tokenizer does it, else BOS, else what separates documents."""

import pytest
from support import word_tokenizer
from tokenizers import processors

from ffkv.base.errors import UserError
from ffkv.corpus.step import configured_bos, find_beginning
from ffkv.model.checkpoint.config import read_config


def tokenizer(bos=True, **special):
    """Ids: <bos> 0, </s> 1, a 2. `special` names its special tokens; others are plain words to it."""
    made = word_tokenizer(["<bos>", "</s>", "a"], bos=bos)
    made.bos_token = None
    for name, token in special.items():
        setattr(made, name, token)
    return made


LOSSES = {"<bos>": 4.1, "</s>": 3.9}
LOWEST = "lowest mean loss on the passages of the proof (<bos> 4.1, </s> 3.9 nats per token)"


@pytest.mark.parametrize(
    "special, bos, losses, ids, reason",
    [
        ({"bos_token": "<bos>"}, "auto", None, [0], "<bos> precedes every sentence: the tokenizer puts it there."),
        # GPT-2 and Pythia: their BOS token is <|endoftext|>, and their tokenizers do not use it.
        ({"bos": False, "bos_token": "</s>"}, "auto", None, [1], "</s> precedes every sentence: it is the BOS token."),
        ({"bos": False, "bos_token": "</s>"}, "auto", None, [1], "corpus.bos 'never'"),
        ({"bos_token": "<bos>"}, "always", None, [0], "as corpus.bos says"),
        ({"bos": False, "bos_token": "<bos>"}, "always", LOSSES, [0], "as corpus.bos says"),
        ({"bos_token": "<bos>"}, "never", None, [], "as corpus.bos says"),
        ({"bos": False, "bos_token": "<bos>"}, "never", None, [], "as corpus.bos says"),
        ({"bos_token": "<bos>"}, "</s>", None, [1], "</s> precedes every sentence, as corpus.bos says"),
        # The lowest loss decides only where the tokenizer does not; of equal ones the first.
        ({"bos": False, "bos_token": "<bos>"}, "auto", LOSSES, [1], LOWEST),
        ({"bos": False, "bos_token": "<bos>"}, "auto", {"<bos>": 4, "</s>": 4}, [0], "lowest mean loss"),
        ({"bos_token": "<bos>"}, "auto", LOSSES, [0], "the tokenizer puts it there"),
    ],
)
def test_what_precedes_a_sentence_and_why(special, bos, losses, ids, reason):
    beginning = find_beginning(tokenizer(**special), bos, losses=losses)
    assert beginning.ids == ids and reason in beginning.reason


def test_a_tokenizer_that_ends_sentences_too_puts_only_its_first_ones_in_front():
    both = tokenizer(bos_token="<bos>")
    both.backend_tokenizer.post_processor = processors.TemplateProcessing(
        "<bos> $A </s>", None, [("<bos>", 0), ("</s>", 1)]
    )
    assert find_beginning(both, "auto").ids == [0]


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


def test_a_token_that_the_tokenizer_lacks_is_refused():
    with pytest.raises(UserError, match=r"corpus\.bos is 'always', but the tokenizer has no BOS token"):
        find_beginning(tokenizer(), "always")
    with pytest.raises(UserError, match=r"corpus\.bos is '<eot>', which the tokenizer does not have.*<bos>"):
        find_beginning(tokenizer(bos_token="<bos>"), "<eot>")


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
