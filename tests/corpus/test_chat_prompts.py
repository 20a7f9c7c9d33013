"""Chats as prompts: their text ends where an answer of the model begins, whatever the form of the template."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import WORDS, word_tokenizer

from ffkv.base.errors import UserError
from ffkv.base.settings import Corpus
from ffkv.branches.behaviours.prompt_file import LONGEST, read_prompts, write_chats
from ffkv.corpus.chat import chat_renderer

OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
# Thoughts of earlier turns are dropped, and an answer stands behind empty ones.
HYBRID = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last and '</think>' not in m.content %}"
    "<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
)
TURN = "<|{{ m.role }}|>\n\n{{ m.content | trim }}<|eot|>"
LLAMA = "{% for m in messages %}" + TURN + "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n\n{% endif %}"
GEMMA = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}"
    "{% endif %}<turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>model\n{% endif %}"
)
# The first text of the system is put in front of the last user's; an answer begins directly behind [/INST].
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {% if loop.last and messages[0].role == 'system' %}"
    "{{ messages[0].content }}\n\n{% endif %}{{ m.content }}[/INST]{% elif m.role == 'assistant' %} {{ m.content }}</s>"
    "{% endif %}{% endfor %}"
)
DEEPSEEK = (
    "{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}{% else %}<|Assistant|>{{ m.content.split('</think>')"
    "[-1] }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)
NO_ANSWER = "{% for m in messages %}{% if m.role == 'assistant' %}{{ raise_exception('x') }}{% endif %}{{ m.content }}{% endfor %}"
NO_TOOLS = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}" + OPEN
CHANNELS = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
USER, SYSTEM = {"role": "user", "content": "a b"}, {"role": "system", "content": "s"}
PREFILL = {"role": "assistant", "content": "c d"}
EMPTY = {"role": "assistant", "content": ""}


def renderer(template):
    tokenizer = word_tokenizer(WORDS)
    tokenizer.chat_template = template
    return tokenizer, chat_renderer(tokenizer, Corpus(chat_template=True), answer=True)


FORMS = {"chatml": CHATML + OPEN, "llama": LLAMA, "gemma": GEMMA, "mistral": MISTRAL, "hybrid": HYBRID + OPEN}


@pytest.mark.parametrize("name", FORMS)
def test_chats_end_where_the_template_lets_an_answer_begin(name, capsys):
    tokenizer, render = renderer(FORMS[name])
    chats = [[USER], [USER, PREFILL, USER]] + ([] if name == "gemma" else [[SYSTEM, USER]])
    for chat in chats:
        assert render(chat) == tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    told = capsys.readouterr().out  # once, of the form that puts empty thoughts in front of an answer
    assert told.count("in front of an answer") == told.count("<think>") == int(name == "hybrid")


@pytest.mark.parametrize("name", [*FORMS, "deepseek", "channels", "no turn"])
@given(words=st.text(st.sampled_from("cd. \nß"), min_size=1).filter(lambda text: text == text.strip()))
def test_words_of_the_assistant_at_the_end_go_on(name, words):
    tokenizer, render = renderer({**FORMS, "deepseek": DEEPSEEK, "channels": CHANNELS, "no turn": CHATML}[name])
    chat = [USER, {"role": "assistant", "content": words}]
    text = render(chat)
    assert text == tokenizer.apply_chat_template(chat, tokenize=False, continue_final_message=True)
    assert text.endswith(words)


@pytest.mark.parametrize(
    ("template", "front"),
    [
        (CHATML, "<|im_start|>user\na b<|im_end|>\n<|im_start|>assistant\n"),
        (HYBRID + OPEN, "<|im_start|>user\na b<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        (LLAMA, "<|user|>\n\na b<|eot|><|assistant|>\n\n"),
        (MISTRAL, "[INST] a b[/INST] "),
        (DEEPSEEK, "<|User|>a b<|Assistant|>"),
        (CHANNELS, "<|start|>user<|message|>a b<|end|><|start|>assistant<|channel|>final<|message|>"),
    ],
)
def test_empty_words_of_the_assistant_lead_to_an_answer(template, front):
    assert renderer(template)[1]([USER, EMPTY]) == front


THINKS = ["<think>", "<|START_THINKING|>", "[THINK]", "◁think▷", "<seed:think>", "<|channel|>analysis<|message|>"]
CLOSED = [
    "<think>\n</think>",
    "<think></think>\n\n",
    "</think>",
    "[THINK][/THINK]",
    "<|START_THINKING|><|END_THINKING|>",
]


@pytest.mark.parametrize(
    ("template", "chat", "said"),
    [
        (CHATML, [USER], "opens no turn of the assistant. A chat ends with '<|im_end|>', and an answer begins behind"),
        (NO_ANSWER, [USER], "opens no turn of the assistant. A chat ends with '', and an answer begins behind ''"),
        *((CHATML + OPEN.replace("\n", f"\n{tag}\n"), [USER], "opens thoughts") for tag in THINKS),
        (CHATML.replace("\n{{ m", "\n<think>{{ m") + OPEN, [USER, PREFILL], "('<think>') in front of 'c d'"),
        (DEEPSEEK, [USER], "opens thoughts ('<think>') where the answer would begin"),
        (DEEPSEEK, [USER, {**PREFILL, "content": "<think>x</think>c"}], "changes or leaves out '<think>x</think>c'"),
        (
            CHATML + OPEN,
            [USER, {**PREFILL, "content": "<think>let me"}],
            "The chat ends inside of thoughts: '<think>' in '<think>let me'. Close them",
        ),
        (NO_TOOLS, [USER, {**USER, "role": "tool"}], "leaves out the last message"),
        (CHATML + OPEN, [{"role": "user"}], "The last message has no content"),
        (CHATML + OPEN, [], "The chat has no message"),
        (GEMMA, [USER, USER], "refuses these messages: roles must alternate"),
    ],
)
def test_chats_that_lead_to_no_answer_are_refused(template, chat, said):
    _, render = renderer(template)
    with pytest.raises(UserError) as refused:
        render(chat)
    assert said in str(refused.value)


def test_a_blank_at_the_end_of_what_the_assistant_says_is_kept():
    """A template may trim finished messages. This one goes on."""
    assert renderer(LLAMA)[1]([USER, {**PREFILL, "content": "c "}]).endswith("<|assistant|>\n\nc ")


@pytest.mark.parametrize("tag", CLOSED)
def test_closed_thoughts_are_not_open(tag):
    _, render = renderer(CHATML + OPEN.replace("\n", f"\n{tag}"))
    assert render([{"role": "user", "content": "Use <think> here"}]).endswith(tag.lstrip())


def chats_of(tmp_path, template, *rows, always=False):
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = word_tokenizer(WORDS)
    tokenizer.chat_template = template
    return write_chats(path, read_prompts(path)[1], tokenizer, always)


def row(chat):
    return {"prompt": chat, "answer": " d", "wrong": " e"}


def test_a_file_of_chats_becomes_texts(tmp_path):
    in_parts = [{"role": "user", "content": [{"type": "text", "text": "a b"}]}]
    texts = [each.clean for each in chats_of(tmp_path, CHATML + OPEN, row([USER]), row(in_parts), row("a b"))]
    assert texts == ["<|im_start|>user\na b<|im_end|>\n<|im_start|>assistant\n"] * 2 + ["a b"]
    assert [each.clean for each in chats_of(tmp_path, CHATML + OPEN, row("a b"), always=True)] == texts[:1]
    assert [each.clean for each in chats_of(tmp_path, None, row("a b"))] == ["a b"]  # no chat, no template
    pair = {"clean_prefix": [USER], "patch_prefix": [PREFILL], "clean_answer": " d", "patch_answer": " e"}
    assert chats_of(tmp_path, CHATML + OPEN, pair)[0].patch == "<|im_start|>assistant\nc d"


def test_chats_that_the_assistant_has_begun_are_told(tmp_path, capsys):
    thought = {**PREFILL, "content": "<think>c</think>d"}
    made = chats_of(tmp_path, CHATML + OPEN, row("a b"), row([USER]), row([USER, PREFILL]), row([USER, thought]))
    assert made[2].clean.endswith("assistant\nc d") and made[3].clean.endswith("<think>c</think>d")
    assert "2 of 4 prompts are chats that end with words of the assistant, line 3 first" in capsys.readouterr().out
    chats_of(tmp_path, CHATML + OPEN, row("a b"), row([USER]))
    assert "words of the assistant" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("template", "rows", "said"),
    [
        (GEMMA, [[USER], [USER, USER]], "line 2: The chat template of the tokenizer refuses these messages: roles"),
        (CHATML, ["a b", [USER]], "line 2: The chat template of the tokenizer opens no turn"),
        (None, ["a b", [USER]], "line 2: The tokenizer has no chat template"),
        (CHATML, [[{"role": "user", "content": 3}]], "line 1: field 'prompt', message 0: its content is int"),
        (CHATML, [[{"role": "user", "content": [{"type": "image"}]}]], "message 0: its content is ['image']"),
        (CHATML, [["a"]], "line 1: field 'prompt', message 0: it is str, not an object with fields"),
    ],
)
def test_what_is_wrong_with_a_chat_is_told_by_file_and_line(tmp_path, template, rows, said):
    with pytest.raises(UserError) as refused:
        chats_of(tmp_path, template, *map(row, rows))
    assert str(refused.value).startswith(f"{tmp_path / 'p.jsonl'}, line ") and said in str(refused.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{]", r"p.jsonl cannot be read \(line 1\): not JSON"),
        ('{"prompt": "a"}'.encode("utf-16"), "p.jsonl cannot be read: it is UTF-16 text: convert it to UTF-8"),
        (b'{"prompt": "a", "answer": "b", "wrong": "c", "label": NaN}', "line 1: field 'label' is nan. A label"),
        (b'{"prompt": "a", "answer": "b", "wrong": "c", "label": true}', "line 1: field 'label' is True. A label"),
        (b'{"prompt": "a", "answer": "b", "wrong": "c", "case": {"a": 1}}', "line 1: field 'case' is {'a': 1}"),
        (b'{"prompt": "a", "answer": "b", "wrong": "c", "label": 1.0}', "line 1: field 'label' is 1.0. A label"),
        (json.dumps(row("a" * (LONGEST + 1))).encode(), "has 1,000,001 characters. Write at most 1,000,000"),
    ],
)
def test_files_that_are_no_prompts(tmp_path, content, said):
    (tmp_path / "p.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=said) as refused:
        read_prompts(tmp_path / "p.jsonl")
    assert "corpus" not in str(refused.value)


def test_what_is_no_file_is_not_opened(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name in ("pipe", "circle", "."):
        with pytest.raises(UserError, match="There is no file of prompts"):
            read_prompts(tmp_path / name)


def test_labels_are_texts_and_whole_numbers(tmp_path):
    prompts = chats_of(tmp_path, None, *({**row("a b"), "label": label} for label in ("1", 1, "x", None, "")))
    assert [each.label for each in prompts] == ["1", "1", "x", "", ""]
