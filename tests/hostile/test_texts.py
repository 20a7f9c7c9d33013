"""Texts that nobody would write: right sentences, tokens and offsets, in seconds and in bounded memory."""

import json

import pytest
from hostile.nasty import BREAKS, NASTY, as_jsonl, closed_up, run
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support import tries

from ffkv.corpus import encode, sentences
from ffkv.corpus.corpus_file import read_corpus


@pytest.mark.parametrize("splitter", ["sentence", "line", "document"])
@pytest.mark.parametrize("pretokenized", ["--pretokenized", "--no-pretokenized"])
def test_tokens_and_offsets_of_nasty_texts_are_right(byte_model, tmp_path, splitter, pretokenized):
    """The documents' sentences spell them, every token stands for its characters, and nothing is lost or invented."""
    (tmp_path / "a.jsonl").write_bytes(as_jsonl(NASTY + BREAKS))
    options = ["--splitter", splitter, pretokenized, "--no-deduplicate"]
    result, output = run(byte_model, tmp_path / "a.jsonl", tmp_path, *options)
    assert result.exit_code == 0, result.output
    made = read_corpus(output)
    texts = {number: text for number, text in enumerate(NASTY + BREAKS) if text.strip()}
    assert list(made.document_names) == [f"{tmp_path / 'a.jsonl'}:{number}" for number in texts]
    spelled = ["" for _ in texts]
    tokens = made.attributes["tokens"]
    assert tokens == len(made.tokens) == made.offsets[-1]
    for sentence in range(len(made)):
        ends = made.token_end[made.offsets[sentence] : made.offsets[sentence + 1]].tolist()
        assert 2 <= len(ends) <= 63
        assert ends == sorted(ends) and ends[-1] == len(made.texts[sentence])
        spelled[made.document[sentence]] += closed_up(made.texts[sentence])
    lost = json.loads(made.attributes["counts"])["one_token_sentences"]
    for text, found in zip(texts.values(), spelled, strict=True):
        assert found == closed_up(text) or (lost and abs(len(found) - len(closed_up(text))) <= 2)


def test_the_tokens_of_a_sentence_spell_it(byte_model, tmp_path):
    from transformers import AutoTokenizer

    texts = [text[:15] for text in NASTY if text.strip()]
    (tmp_path / "a.jsonl").write_bytes(as_jsonl(texts))
    _, output = run(byte_model, tmp_path / "a.jsonl", tmp_path, "--splitter", "document", "--pretokenized")
    made, tokenizer = read_corpus(output), AutoTokenizer.from_pretrained(byte_model)
    assert [tokenizer.decode(made.ids(n)) for n in range(len(made))] == list(made.texts) == [t.strip() for t in texts]


def test_a_hundred_thousand_empty_lines(byte_model, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n" * 100_000)
    result, _ = run(byte_model, path, tmp_path)
    assert "has 0 sentences of two tokens or more" in str(result.exception)
    path.write_text("\n" * 50_000 + "the cat\n" + "\n" * 49_998 + "the mat\n")
    result, output = run(byte_model, path, tmp_path)
    made = read_corpus(output)
    assert list(made.texts) == ["the cat", "the mat"]
    assert [made.document_names[number] for number in made.document] == [f"{path}:50000", f"{path}:99999"]
    assert "documents: 100,000; left out documents: 0; empty documents: 99,998" in result.output


def long_line(byte_model, tmp_path, times: int, *options: str) -> tuple[str, str]:
    """A line of 250 kB so many times, and what the corpus kept of it, both without blanks."""
    line = "the cat sat " * 10_000 * times + "x" * 100_000 * times + "the end. " * 3_000 * times
    (tmp_path / "a.txt").write_text(f"the cat\non the mat\n{line}\n")
    result, output = run(byte_model, tmp_path / "a.txt", tmp_path, "--no-deduplicate", *options)
    assert result.exit_code == 0, result.exception
    made = read_corpus(output)
    return closed_up(line), "".join(closed_up(made.texts[number]) for number in range(2, len(made)))


@pytest.mark.slow
def test_a_line_of_two_megabytes(byte_model, tmp_path):
    line, kept = long_line(byte_model, tmp_path, 8)
    assert abs(len(kept) - len(line)) <= 20  # parts of one token are left out


@pytest.mark.parametrize("options", [[], ["--pretokenized"], ["--splitter", "document"]], ids="".join)
@pytest.mark.parametrize("dropped", [False, True])
def test_every_character_of_a_long_line_is_in_a_window_or_none_is(byte_model, tmp_path, monkeypatch, options, dropped):
    monkeypatch.setattr(sentences, "PIECE_CHARACTERS", 20_000)
    monkeypatch.setattr(encode, "MAX_CHARACTERS", 50_000)
    line, kept = long_line(byte_model, tmp_path, 1, *options, "--long-sentences", "drop" if dropped else "windows")
    if dropped:
        assert "x" not in kept
        assert set(kept.split("theend.")) <= {""}
    else:
        assert abs(len(kept) - len(line)) <= 40


@given(
    st.lists(
        st.sampled_from([*"abc.?! \n", "Dr. ", "e.g. ", "...", "(", '"', "x" * 250, "-" * 45, "数。"]), max_size=60
    )
)
@hypothesis_settings(max_examples=tries(150), suppress_health_check=list(HealthCheck))
def test_a_document_that_is_split_in_pieces_has_the_same_sentences(pieces):
    text = " ".join(["".join(pieces[n : n + 6]) for n in range(0, len(pieces), 6)])
    for pretokenized in (False, True):
        whole = list(filter(None, sentences.split_sentences(text, "sentence", pretokenized)))
        longest = max(map(len, whole), default=0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sentences, "PIECE_CHARACTERS", 2 * longest + 2)
            assert list(filter(None, sentences.split_sentences(text, "sentence", pretokenized))) == whole
            patch.setattr(sentences, "PIECE_CHARACTERS", 3)
            assert closed_up("".join(sentences.split_sentences(text, "sentence", pretokenized))) == closed_up(text)
