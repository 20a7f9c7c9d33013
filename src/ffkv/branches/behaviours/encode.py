"""The first step: the prompts of a behaviour as the model reads them, which of them are used, and in which half.

A file of prompts is made from a few words and templates. What a memory does on "The authors near the car" tells what it does on "The
authors behind the car", so the two count as one draw. A group of prompts is the unit that is drawn at random:

- the field `group` of the file, if it is there;
- of pairs, else, the words in which the two prompts differ. Pairs that have such a word in common are of one group, also if they have it
  in common by way of others: {France, Germany} and {Germany, France}, but also {France, Italy} and {Italy, Spain}. To count these as
  several groups finds too much: if each of 18 countries has a value of its own, and the number of a pair is the sum of its two values and
  means nothing, each pair as a group gives p <= 0.05 in two of three cases;
- of other prompts, the prompt itself.

Prompts that are equal are of one group.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.streams import Purpose, random_stream
from ffkv.base.terminal import say
from ffkv.branches.behaviours import words
from ffkv.branches.behaviours.prompt_file import Prompt, read_prompts, write_chats
from ffkv.branches.behaviours.settings import Behaviour
from ffkv.branches.behaviours.stored import NO_TOKEN, Encoded
from ffkv.branches.behaviours.tables import PROMPTS
from ffkv.branches.given import Given
from ffkv.corpus.corpus_file import Corpus
from ffkv.corpus.encode import behind, replace_surrogates, tokenize
from ffkv.model.anatomy import read_anatomy_to_run

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BEGINS = "an answer begins the other one"  # which is refused
NAMED = 4  # words in the name of a group
# A word; of scripts without blanks between words (Thai to Khmer, Japanese, Chinese) a character.
WORD = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]|\w+")
SAMPLED = ("sentence", "position", "next_token")  # what is read of sampled prefixes


def encode_behaviour(given: Given, settings: Behaviour, seed: int = 0) -> pd.DataFrame:
    """Encodes the prompts of a behaviour, and draws those that are used; and prefixes with which they are compared
    (docs/behaviours.md).

    Pairs whose baseline is the other prompt, and lists, need no sampled prefixes and no validation split. Returns the table `PROMPTS`.

    Raises:
        UserError: the file of prompts is missing or malformed; a chat has no template; two lists are to be patched at all positions;
            an answer begins the other one, or has several tokens although a graph is asked for; fewer than two prompts can be used; or
            the prefixes are needed and not named.
    """
    from ffkv.model.checkpoint.tokenizer import load_tokenizer

    anatomy = read_anatomy_to_run(given.files["model"], given.work.trust_remote_code)
    tokenizer = load_tokenizer(given.files["model"], trust_remote_code=anatomy.trust_remote_code)
    kind, prompts = read_prompts(settings.prompts, settings.fields)
    everywhere = settings.positions == "all"
    prompts = write_chats(settings.prompts, prompts, tokenizer, settings.chat_template)
    encoded = encode_prompts(prompts, tokenizer, given.train.bos, anatomy.vocabulary, anatomy.context, everywhere)
    _check(kind, prompts, encoded, settings, given.name)
    positive = np.array([prompt.positive for prompt in prompts])
    labels, unused = [prompt.label for prompt in prompts], [each.unused for each in encoded]
    grouped_by, groups = groups_of(prompts, np.array([not why for why in unused]))
    part, order = draw(unused, positive, labels, groups, settings.count, seed)
    rows = [
        {
            **prompt._asdict(),
            **own._asdict(),
            "prompt": number,
            "label": replace_surrogates(prompt.label),
            "group": replace_surrogates(group),
            "part": half,
            "order": place,
            "unused": own.unused or ("" if half else words.UNDRAWN),
            "text": replace_surrogates(str(prompt.clean)),
            "clean": own.clean.tolist(),
            "patch": own.patch.tolist(),
        }
        for number, (prompt, own, group, half, place) in enumerate(zip(prompts, encoded, groups, part, order))
    ]
    used = _check_halves(rows, settings.prompts)
    if kind == words.PROMPTS or (kind == words.PAIRS and settings.baseline != "patch"):
        generator = random_stream(seed, Purpose.REFERENCE_PREFIXES)
        if not given.files.get("prefixes") or not given.files.get("validation"):
            raise UserError(
                f"{settings.prompts} is compared with prefixes of other text: name `prefixes` and `validation`."
            )
        rest = max(len(tokens) for own in encoded for tokens in (own.answer_rest, own.wrong_rest))
        sampled = [given.sampled(name) for name in SAMPLED]
        fits = len(given.validation.bos) + sampled[SAMPLED.index("position")] + rest <= anatomy.context
        sampled = [each[fits] for each in sampled]  # prefixes with room for an answer
        drawn = draw_prefixes(sampled, given.validation, everywhere, used, generator)
        for row, (text, own) in zip([row for row in rows if row["part"]], drawn):
            ids = own.clean.tolist()
            # With the answers of a prompt. The other prompt of a pair is the prefix itself, as no contrast of it is asked for.
            other = ids if kind == words.PAIRS else []
            rows.append({**row, **text, "prompt": len(rows), "clean": ids, "patch": other, "tokens": own.tokens})
    frame = pd.DataFrame(rows).assign(behaviour=given.name, grouped_by=grouped_by)
    return tables.identify(PROMPTS.frame(frame), given.train.attributes)


def _check(kind: str, prompts: Sequence[Prompt], encoded: Sequence[Encoded], settings: Behaviour, name: str) -> None:
    """Refuses what cannot be measured of the prompts of a behaviour with this name."""
    if kind == words.LISTS and (settings.positions == "all" or settings.graph_prompts):
        why = "answers, so they have no graph. Set `graph_prompts` of {} to 0"
        if settings.positions == "all":
            why = "positions in common, so they cannot be compared with `positions: all`. Set `positions` of {} to last"
        raise UserError(f"{settings.prompts} has two lists. Their prompts have no {why.format(name)}, or write pairs.")
    for prompt, own in zip(prompts, encoded, strict=True):
        both = f"{settings.prompts}, {prompt.line}: the answers are {prompt.answer!r} and {prompt.wrong!r}."
        if own.unused == BEGINS:
            raise UserError(f"{both} One begins with the other, so nothing tells them apart. Write other answers.")
        if settings.graph_prompts and not own.unused and (own.answer_rest or own.wrong_rest):
            raise UserError(
                f"{both} They have several tokens, and a graph is of one. Set graph_prompts of {name} to 0."
            )


def _check_halves(rows: list[dict], path: str) -> int:
    """Returns how many prompts are used, and says why others are not. Raises UserError if a half has too few. `path`: their file."""
    counts = Counter(row["unused"] for row in rows)
    used = counts.pop("", 0)
    told = f"{used} of {len(rows)} prompts are used" + "".join(f"; {n}: {why}" for why, n in counts.items()) + "."
    if counts:
        say(told)
    for half in (words.CHOOSE, words.ESTIMATE):
        if {row["positive"] for row in rows if row["part"] == half} < {row["positive"] for row in rows}:
            raise UserError(f"{path} has too few usable prompts: each half needs one, of two lists one of each. {told}")
    return used


def encode_prompts(
    prompts: Sequence[Prompt],
    tokenizer: "PreTrainedTokenizerBase",
    beginning: Sequence[int],
    vocabulary: int,
    context: int,
    everywhere: bool = False,
) -> list[Encoded]:
    """Encodes prompts to the letter. An answer is the tokens by which it continues its prompt.

    Tokens with which both answers begin are put behind the prompt. If nothing is left of one answer, `unused` is `BEGINS`.

    Args:
        prompts: texts, see `write_chats`.
        beginning: ids that precede every sentence.
        vocabulary: number of tokens that the model knows.
        context: number of tokens that it reads at most.
        everywhere: whether memories are patched at all tokens behind the beginning, else at the last one.
    """

    def ids_of(texts: Iterable[str]) -> list[np.ndarray]:
        found = tokenize([replace_surrogates(text) for text in texts], tokenizer, list(beginning))
        return [behind(beginning, ids) for ids, *_ in found]

    of_kinds = [
        ids_of(str(each.clean) for each in prompts),
        ids_of(str(each.patch or "") for each in prompts),
        *(ids_of(f"{each.clean}{getattr(each, name)}" for each in prompts) for name in ("answer", "wrong")),
    ]
    seen: set[tuple] = set()
    encoded, first = [], len(beginning) if everywhere else 0
    for prompt, own, patch, *continued in zip(prompts, *of_kinds, strict=True):
        paired = prompt.patch is not None
        common, both, unused = _answers(own, continued) if prompt.answer else ([], [[NO_TOKEN]] * 2, "")
        (answer, *answer_rest), (wrong, *wrong_rest) = both
        rows = own, patch if paired else patch[:0]
        own, patch = (np.array([*ids, *common], np.int64) if len(ids) else ids for ids in rows)
        if max(own.max(initial=0), patch.max(initial=0), *both[0], *both[1]) >= vocabulary:
            unused = words.UNKNOWN
        elif max(len(own), len(patch)) + max(len(answer_rest), len(wrong_rest)) >= context:
            unused = words.LONG
        elif min(len(own), len(patch) if paired else len(own)) <= first:
            unused = words.EMPTY
        elif everywhere and paired and len(own) != len(patch):
            unused = words.UNEQUAL
        name = (own.tobytes(), patch.tobytes(), *map(tuple, both), prompt.positive)
        unused = unused or (words.DOUBLED if name in seen else "")
        seen.add(name)
        tokens = len(own) - first if everywhere else 1
        encoded.append(Encoded(own, patch, answer, wrong, unused, tokens, 0, answer_rest, wrong_rest))
    return encoded


def _answers(prompt: np.ndarray, continued: Sequence[np.ndarray]) -> tuple[list[int], list[list[int]], str]:
    """Returns the tokens with which both answers begin, the others of each one, and why they cannot be used."""
    if not all(len(each) > len(prompt) and np.array_equal(each[: len(prompt)], prompt) for each in continued):
        return [], [[NO_TOKEN]] * 2, words.MERGED
    both = [each[len(prompt) :].tolist() for each in continued]
    equal = len([*itertools.takewhile(lambda tokens: tokens[0] == tokens[1], zip(*both))])
    if equal == min(map(len, both)):
        return [], both, words.SAME if both[0] == both[1] else BEGINS
    return both[0][:equal], [each[equal:] for each in both], ""


def changed_words(clean: str, patch: str) -> list[str]:
    """Returns the words in which two prompts differ, those of both, in small letters, each once.

    Prompts of equally many words are compared place by place, others behind what is taken out and put in.
    """
    one, other = (WORD.findall(text.casefold()) for text in (clean, patch))
    if len(one) == len(other):
        return sorted({word for pair in zip(one, other) if len({*pair}) > 1 for word in pair})
    changes = SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    spans = [[*one[a:b], *other[c:d]] for kind, a, b, c, d in changes if kind != "equal"]
    return sorted({*itertools.chain(*spans)})


def group_by_words(clean: Sequence[str], patch: Sequence[str]) -> list[str]:
    """Returns the group of each prompt: those that share a text, or a word in which they differ, have one group.

    Args:
        clean: the prompts [prompt].
        patch: the other prompts of the pairs; of prompts that are no pairs, the prompts again [prompt].
    Returns:
        A name for each: the first words of the group, or, without any, its first text [prompt].
    """
    differ = [changed_words(*texts) for texts in zip(clean, patch, strict=True)]
    # A text and a word may be equal, so that texts stand behind a mark.
    parts = [[*own, *(f"\0{text}" for text in texts)] for own, texts in zip(differ, zip(clean, patch))]
    above: dict[str, str] = {}

    def root(part: str) -> str:
        while above.setdefault(part, part) != part:
            above[part] = part = above[above[part]]
        return part

    for first, *others in parts:
        for other in others:
            above[root(other)] = root(first)
    roots = [root(first) for first, *_ in parts]
    members: dict[str, set[str]] = {}
    for name, own in zip(roots, differ):
        members.setdefault(name, set()).update(own)
    names = {name: ", ".join(sorted(own)[:NAMED]) + " ..." * (len(own) > NAMED) for name, own in members.items()}
    return [names[name] or name[1:] for name in roots]


def groups_of(prompts: Sequence[Prompt], used: np.ndarray) -> tuple[str, list[str]]:
    """Returns what makes the groups of prompts, and the group of each.

    Args:
        prompts: texts, see `write_chats`.
        used: whether each prompt can be used; others have no group [prompt].
    """
    if prompts[0].group:
        return words.BY_FIELD, [prompt.group for prompt in prompts]
    own = np.flatnonzero(used).tolist()
    clean = [str(prompts[number].clean) for number in own]
    patch = [str(prompts[number].patch or prompts[number].clean) for number in own]
    groups = dict(zip(own, group_by_words(clean, patch), strict=True))
    by = words.BY_PROMPT if prompts[0].patch is None else words.BY_WORDS
    return by, [groups.get(number, "") for number in range(len(prompts))]


def draw(
    unused: Sequence[str], positive: np.ndarray, labels: Sequence[str], groups: Sequence[str], count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draws up to `count` of the prompts that can be used, and puts the groups of one half of them into each part.

    Prompts are drawn over groups and labels in turn, so that a part of them, from the first one in the order on, is spread over both.
    Of two lists, each gets half of the places. If the groups cannot be halved, because a list has a single one, its prompts are.

    Args:
        unused: why each prompt cannot be used; "" if it can [prompt].
        positive: whether it is of the first of two lists [prompt].
        labels, groups: of each prompt [prompt].
    Returns:
        `CHOOSE`, `ESTIMATE`, or "" for a prompt that is not drawn [prompt]; and the place of each prompt in the order in which prompts of its
        half are taken, -1 if it is not drawn [prompt].
    """
    generator = random_stream(seed, Purpose.BEHAVIOUR_PROMPTS)
    kinds = [*zip(positive.tolist(), labels, strict=True)]
    order = in_turn(generator.permutation(np.flatnonzero([not why for why in unused])).tolist(), groups, kinds)
    lists = [[number for number in order if positive[number] == which] for which in (True, False)]
    room = count if min(map(len, lists)) == 0 else count // 2
    drawn = {number for own in lists for number in own[:room]}
    order = [number for number in order if number in drawn]
    part, place = np.full(len(unused), "", object), np.full(len(unused), -1)
    found = halve(order, groups, kinds)
    if any({bool(positive[n]) for n in order if found[n] == half} != {*positive[order].tolist()} for half in (0, 1)):
        found = halve(order, [*map(str, range(len(unused)))], kinds)
    for half, name in enumerate((words.CHOOSE, words.ESTIMATE)):
        own = in_turn([number for number in order if found[number] == half], groups, kinds)
        part[own], place[own] = name, np.arange(len(own))
    return part, place


def in_turn(numbers: Iterable[int], groups: Sequence[str], kinds: Sequence[tuple[bool, str]]) -> list[int]:
    """Returns prompts in an order of which any beginning is spread over groups and kinds as evenly as can be.

    Each group gives one prompt in turn: one of the kind that has been taken least.

    Args:
        numbers: the prompts, in random order.
        groups: the group of each prompt of the file [prompt].
        kinds: whether each prompt of the file is of the first of two lists, and its label [prompt].
    """
    waiting: dict[str, dict[tuple[bool, str], list[int]]] = {}
    for number in numbers:
        waiting.setdefault(groups[number], {}).setdefault(kinds[number], []).append(number)
    taken: Counter[tuple[bool, str]] = Counter()
    order: list[int] = []
    while waiting:
        for own in waiting.values():
            kind = min(own, key=taken.__getitem__)
            taken[kind] += 1
            order.append(own[kind].pop())
            if not own[kind]:
                del own[kind]
        waiting = {group: own for group, own in waiting.items() if own}
    return order


def halve(numbers: Sequence[int], groups: Sequence[str], kinds: Sequence[tuple[bool, str]]) -> dict[int, int]:
    """Puts prompts into two halves, groups as a whole, so that both have as many of each kind, and of each list, as can be.

    The largest groups come first, each to the half with fewer of its kinds; if equal, fewer of its lists. Arguments: as in `in_turn`.

    Returns:
        0 or 1 for each prompt.
    """
    members: dict[str, list[int]] = {}
    for number in numbers:
        members.setdefault(groups[number], []).append(number)
    halves, counts = dict[int, int](), (Counter[Any](), Counter[Any]())  # of each half, by kind and by list
    for own in sorted(members.values(), key=len, reverse=True):
        group: list[Counter[Any]] = [
            Counter(kinds[number] for number in own),
            Counter(kinds[number][0] for number in own),
        ]
        like = [[sum(half[each] * n for each, n in of.items()) for of in group] for half in counts]
        place = int(like[1] < like[0])
        for of in group:
            counts[place].update(of)
        halves |= dict.fromkeys(own, place)
    return halves


def draw_prefixes(
    sampled: Sequence[np.ndarray], corpus: Corpus, whole: bool, most: int, generator: np.random.Generator
) -> list[tuple[dict, Encoded]]:
    """Draws sampled prefixes: columns of the table `PROMPTS`, and tokens with the one that follows as both answers.

    Args:
        sampled: `SAMPLED` of all of them.
        corpus: the validation split.
        whole: whether memories are patched at all tokens.
        most: how many to draw at most.
    """
    sentence, position, following = sampled
    drawn = np.sort(generator.choice(len(sentence), min(most, len(sentence)), replace=False)).tolist()
    found = []
    for n in drawn:
        ids = corpus.prefix_ids(sentence[n], position[n])
        row: dict[str, object] = {"label": "", "positive": False, "part": words.REFERENCE, "order": -1}
        row["line"] = f"sentence {sentence[n]}, token {position[n]}"
        row["text"] = corpus.prefix_text(sentence[n], position[n])
        row["group"] = f"sentence {sentence[n]} of the validation split"
        tokens = len(ids) - len(corpus.bos) if whole else 1
        answer = int(following[n])
        found.append((row, Encoded(ids, ids[:0], answer, answer, "", tokens, n)))
    return found
