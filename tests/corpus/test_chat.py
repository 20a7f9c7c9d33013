"""Chats become text by the template of the tokenizer, with every special token once."""

import json
import random
from datetime import datetime
from pathlib import Path

import pandas as pd
import pytest
from support import prove_into, random_checkpoint

from ffkv.base.errors import UserError
from ffkv.base.hub.commit import Commit
from ffkv.base.settings import Corpus
from ffkv.corpus import sources
from ffkv.corpus.chat import chat_renderer
from ffkv.corpus.corpus_file import read_corpus
from ffkv.corpus.document import Document
from ffkv.corpus.encode import encode
from ffkv.corpus.rows import row_document
from ffkv.corpus.sources import read_documents
from ffkv.corpus.step import encode_corpus, find_beginning
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.small import BOS, train_tokenizer

TURNS = (
    "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<|start|>{{ message.role }}\n{{ message.content }}{{ message.weight }}<|end|>\n{% endfor %}"
)
CHATS = [
    [
        {"role": "system", "content": "  Be brief.\n\n\tAlways."},
        {"role": "user", "content": "Is it?  "},
        {"role": "assistant", "content": "It is <|end|>."},
    ],
    [{"role": "user", "content": "😀\r\nand more", "weight": 0.5}],
]
CHAT = Corpus(
    dataset="files",
    train=["a.jsonl"],
    validation=["a.jsonl"],
    text_field="messages",
    chat_template=True,
    white_space="keep",
    splitter="document",
)


def chat_tokenizer(template: str | None):
    tokenizer = train_tokenizer(["the cat sat on the mat"], 300, 64)
    tokenizer.add_tokens(["<|start|>", "<|end|>"], special_tokens=True)
    tokenizer.chat_template = template
    return tokenizer


WITH_BOS, WITHOUT = chat_tokenizer("{{ bos_token }}" + TURNS), chat_tokenizer(TURNS)


def ids_of(tokenizer, chats, bos="auto", longest=10_000, splitter="document"):
    """What the model reads for each chat: the beginning and the ids of its sentences."""
    settings = CHAT.model_copy(update={"splitter": splitter})
    render = chat_renderer(tokenizer, settings)
    beginning = find_beginning(tokenizer, bos, None, render)
    documents = [Document(f"d{number}", render(chat)) for number, chat in enumerate(chats)]
    encoded = encode(documents, tokenizer, longest, settings, beginning.ids)
    return [[*beginning.ids, *ids.tolist()] for ids in encoded.ids], encoded


@pytest.mark.parametrize("tokenizer", [WITH_BOS, WITHOUT], ids=["with BOS", "without"])
def test_a_chat_is_the_tokens_that_transformers_makes_of_it(tokenizer):
    expected = [tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False) for chat in CHATS]
    found, encoded = ids_of(tokenizer, CHATS)
    assert found == expected
    assert [ids.count(tokenizer.bos_token_id) for ids in found] == [int(tokenizer is WITH_BOS)] * 2
    texts = [tokenizer.apply_chat_template(chat, tokenize=False).removeprefix(BOS) for chat in CHATS]
    assert encoded.text == texts
    for ids, ends, text in zip(encoded.ids, encoded.ends, encoded.text, strict=True):
        assert ends[-1] == len(text)
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("bos", ["auto", "always", "never"])
def test_bos_is_never_there_twice(bos):
    for tokenizer in (WITH_BOS, WITHOUT):
        written = tokenizer is WITH_BOS
        found, _ = ids_of(tokenizer, CHATS, bos)
        count = {"auto": int(written), "always": 1, "never": int(written)}[bos]
        assert all(ids[:count] == [tokenizer.bos_token_id] * count for ids in found)
        assert [ids.count(tokenizer.bos_token_id) for ids in found] == [count] * 2


def test_every_window_of_a_long_chat_begins_with_the_bos_of_the_template():
    whole, _ = ids_of(WITH_BOS, CHATS[:1])
    windows, encoded = ids_of(WITH_BOS, CHATS[:1], longest=20)
    assert [ids[0] for ids in windows] == [WITH_BOS.bos_token_id] * len(windows)
    assert [token for ids in windows for token in ids[1:]] == whole[0][1:][: sum(map(len, encoded.ids))]


@pytest.mark.parametrize("front", ["", "\n", " ", "  {% if true %}x{% endif %}\n", "\n\n  {{ bos_token }}"])
def test_todays_date_does_not_matter(front):
    """It stands where the template writes it, and nothing else changes."""
    codes = "%d %b %Y, %-d.%m.%y, %e, %F, %D, %T, %R, %p, %j, %%Y, %A, %B, [%z]"
    day = "26 Jul 2024, 26.07.24, 26, 2024-07-26, 07/26/24, 00:00:00, 00:00, AM, 208, %Y, Friday, July, []"
    now = "{{ strftime_now(format='" + codes + "') if strftime_now is defined }}"
    fixed, plain = (chat_tokenizer(front + date + TURNS) for date in (now, day))
    assert f"{day}<|start|>user" in chat_renderer(fixed, CHAT)(CHATS[1])
    assert chat_renderer(fixed, CHAT)(CHATS[1]) == plain.apply_chat_template(CHATS[1], tokenize=False)
    today = datetime.now()
    assert f"{today:%Y}" in fixed.apply_chat_template(CHATS[1], tokenize=False)  # it is changed for a moment only


@pytest.mark.parametrize("drawn", ["{{ range(10**5) | random }}", "{{ lipsum(html=false) }}"])
def test_what_a_template_draws_is_always_the_same(drawn):
    """So is the next number that somebody else draws."""
    tokenizer = chat_tokenizer(drawn + TURNS)
    random.seed(7)
    texts = {chat_renderer(tokenizer, CHAT)(CHATS[1]) for _ in range(5)}
    assert len(texts) == 1
    found = random.random()
    random.seed(7)
    assert found == random.random()
    assert len({tokenizer.apply_chat_template(CHATS[1], tokenize=False) for _ in range(5)}) > 1


def test_a_template_that_leaves_out_what_a_user_says_is_refused():
    """Templates of models with pictures may read contents in parts only: of a text they make nothing."""
    parts = "{% for m in messages %}{{ m.role }}: {% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
    with pytest.raises(UserError, match="leaves out a text that a user says"):
        chat_renderer(chat_tokenizer(parts), CHAT)


def test_of_several_templates_the_default_counts():
    named = {"default": TURNS, "tool_use": "nothing"}
    assert chat_renderer(chat_tokenizer(named), CHAT)(CHATS[0]) == chat_renderer(WITHOUT, CHAT)(CHATS[0])
    with pytest.raises(UserError, match="does not say which chat template is its own"):
        chat_renderer(chat_tokenizer({"tool_use": TURNS, "rag": TURNS}), CHAT)


def write(path: Path, rows: list) -> Path:
    if path.suffix == ".parquet":
        pd.DataFrame({"messages": rows}).to_parquet(path)
    elif path.suffix == ".json":
        path.write_text(json.dumps([{"messages": row} for row in rows]))
    else:
        path.write_text("".join(json.dumps({"n": 1, "messages": row}) + "\n" for row in rows))
    return path


def read(path: Path, tokenizer=WITH_BOS) -> list[str]:
    settings = CHAT.model_copy(update={"train": [str(path)]})
    return [document.text for document in read_documents(settings, "train", chat_renderer(tokenizer, settings))]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_every_format_gives_the_same_chats(tmp_path, name):
    """A parquet file has every field in every message, null where it is missing; numbers are printed by the template."""
    expected = [WITH_BOS.apply_chat_template(chat, tokenize=False) for chat in CHATS]
    assert "more0.5<|end|>" in expected[1]
    assert read(write(tmp_path / name, [*CHATS, None, []])) == [*expected, "", ""]
    in_parts = [[{**one, "content": [{"type": "text", "text": one["content"]}]} for one in chat] for chat in CHATS]
    assert read(write(tmp_path / name, in_parts)) == expected


def test_so_does_a_hub_data_set(monkeypatch):
    monkeypatch.setattr(sources, "read_rows", lambda *_: ({"messages": chat} for chat in [*CHATS, None]))
    settings = CHAT.model_copy(update={"dataset": "some/chats", "train": ["train"]})
    commit = Commit("dataset", "some/chats", "main", "0" * 40)
    found = [document.text for document in read_documents(settings, "train", chat_renderer(WITH_BOS, settings), commit)]
    assert found == [*(WITH_BOS.apply_chat_template(chat, tokenize=False) for chat in CHATS), ""]


@pytest.mark.parametrize(
    "row, message",
    [
        ("text", r"field 'messages' contains str, not a list of messages\. Mend the data, name another field"),
        ({"role": "user"}, "contains dict, not a list of messages"),
        (["hello"], r"message 0: it is str, not an object with fields"),
        ([*CHATS[0], {"from": "human", "value": "x"}], r"message 3: it has no role.*Its fields: 'from', 'value'"),
        ([{"role": "user", "content": 3}], r"message 0: its content is int, not one text"),
        ([{"role": "user", "content": ["x"]}], "message 0: its content is \\['str'\\], not one text"),
        ([{"role": "user", "content": [{"type": "text"}]}], "message 0: its content is \\['text'\\], not one text"),
        (
            [*CHATS[0], {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}],
            "message 3: its content is \\['text', 'image_url'\\], not one text",
        ),
        ([{"role": "user", "content": [{"type": "text", "text": "x"}] * 2}], "its content is \\['text', 'text'\\]"),
        ([{"role": "user", "content": []}], "message 0: its content is \\[\\], not one text"),
        ([{"role": "tool", "content": "x"}], "refuses these messages: no tools here"),
    ],
)
def test_a_row_that_is_no_chat_is_refused_with_its_place(tmp_path, row, message):
    path = write(tmp_path / "a.jsonl", [CHATS[0], row])
    with pytest.raises(UserError, match=rf"a\.jsonl, line 2: .*{message}") as refused:
        read(path)
    assert "\n" not in str(refused.value)


def test_files_without_fields_and_tokenizers_without_template_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a\n")
    with pytest.raises(UserError, match=r"a\.txt: corpus\.chat_template is true, and only rows of jsonl and parquet"):
        read(tmp_path / "a.txt")
    with pytest.raises(UserError, match="The tokenizer has no chat template"):
        chat_renderer(chat_tokenizer(None), CHAT)
    with pytest.raises(UserError, match="The chat template of the tokenizer refuses these messages: "):
        find_beginning(broken := chat_tokenizer("{{ no.such.thing }}"), "auto", None, chat_renderer(broken, CHAT))


def test_text_that_is_asked_for_is_no_chat():
    with pytest.raises(UserError, match=r"row 3: field 'text' contains list, not text\. Set corpus\.text_field or"):
        row_document({"text": []}, Corpus(), "row 3")
    assert [row_document({"text": value}, Corpus(), "row 3").text for value in ("a", None)] == ["a", ""]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"white_space": "collapse"}, "white_space must be 'keep'"),
        ({"dataset": "embedded"}, "corpus.dataset is 'embedded', which contains no chats"),
        ({"detokenize": True}, "detokenize takes blanks out of the text"),
    ],
)
def test_settings_that_chats_exclude(changes, message):
    problems = CHAT.model_copy(update=changes).contradictions()
    assert len(problems) == 1 and message in problems[0]


def test_the_step_takes_the_template_of_the_model(tmp_path):
    checkpoint = random_checkpoint(tmp_path / "checkpoint", "gpt2")
    tokenizer = load_tokenizer(checkpoint)
    tokenizer.chat_template = "{{ bos_token }}{% for message in messages %} w1 {{ message.content }}{% endfor %}"
    tokenizer.save_pretrained(checkpoint)
    model = prove_into(tmp_path / "run", checkpoint)
    chats = [[{"role": "user", "content": f"w{number} w3"}] * (number % 3 + 1) for number in range(9)]
    settings = CHAT.model_copy(update={"train": [str(write(tmp_path / "a.jsonl", chats))]})
    made = encode_corpus(model, "train", settings, tmp_path / "train.h5")
    assert made.bos == [0]
    assert "the chat template writes it" in made.attributes["beginning"]
    words = [[f"w{tokenizer.decode(token)[1:]}" for token in made.ids(number)] for number in range(len(made))]
    assert words == [["w1", f"w{number}", "w3"] * (number % 3 + 1) for number in range(9)]
    assert read_corpus(tmp_path / "train.h5").texts[0] == " w1 w0 w3"
