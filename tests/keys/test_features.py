from ffkv.branches.keys.features import KINDS, count_places, shallow_evidence, word_class


def test_a_prefix_has_its_ends_its_sequences_and_its_last_words_class():
    evidence = shallow_evidence(["She", "decides", "not", "to", "Press"])
    assert evidence.words == 5
    assert evidence.features == [
        ("first word", "she"),
        ("last word", "press"),
        ("word class", "a capitalised word"),
        ("inner bigram", "she decides"),
        ("inner bigram", "decides not"),
        ("inner bigram", "not to"),
        ("inner bigram", "to press"),
        ("last bigram", "to press"),
        ("inner trigram", "she decides not"),
        ("inner trigram", "decides not to"),
        ("inner trigram", "not to press"),
        ("last trigram", "not to press"),
    ]


def test_case_does_not_tell_features_apart():
    upper, lower = (shallow_evidence(text.split()) for text in ("She decides not to press", "she decides not to press"))
    assert upper == lower


def test_short_prefixes_have_what_fits():
    assert shallow_evidence([]) == ([], 0)
    assert shallow_evidence(["1945"]).features == [
        ("first word", "1945"),
        ("last word", "1945"),
        ("word class", "a year"),
    ]
    assert {kind for kind, _ in shallow_evidence(["a", "the"]).features} == {
        "first word", "last word", "word class", "inner bigram", "last bigram",
    }  # fmt: skip


def test_a_prefix_has_as_many_features_of_a_kind_as_it_has_places(subtests):
    for kind in [kind for kind, described in KINDS.items() if described.family == "shallow"]:
        for words in range(6):
            with subtests.test(kind=kind, words=words):
                evidence = shallow_evidence(["the"] * words)
                assert sum(found == kind for found, _ in evidence.features) == count_places(kind, words)


WORDS = [
    ("1945", "a year"),
    ("2010", "a year"),
    ("9999", "a number"),
    ("3.14", "a number"),
    ("12,000", "a number"),
    ("7", "a number"),
    (",", "punctuation"),
    ("...", "punctuation"),
    ("<unk>", ""),
    ("os.path", "an identifier"),
    ("read_file", "an identifier"),
    ("__init__", "an identifier"),
    ("getValue", "an identifier"),
    ("MAX_SIZE", "an identifier"),
    ("U.S", "capital letters"),
    ("K", ""),
    ("NATO", "capital letters"),
    ("Paris", "a capitalised word"),
    ("Jean-Luc", "a capitalised word"),
    ("Émile", "a capitalised word"),
    ("running", "a word in -ing"),
    ("decided", "a word in -ed"),
    ("quickly", "a word in -ly"),
    ("of", "a preposition"),
    ("The", "a determiner"),
    ("house", ""),
]


def test_word_classes(subtests):
    for word, expected in WORDS:
        with subtests.test(word=word, expected=expected):
            assert word_class(word) == expected


OTHER_LANGUAGES = [
    ("de", "Und", "a function word"),
    ("de", "1984", "a year"),
    ("de", "Zeitung", "a capitalised word"),
    ("de", "sing", ""),  # no form of a German verb
    ("de", "them", ""),
    ("xx", "und", ""),
    ("xx", "...", "punctuation"),
]


def test_word_classes_of_other_languages(subtests):
    for language, word, expected in OTHER_LANGUAGES:
        with subtests.test(language=language, word=word, expected=expected):
            assert word_class(word, language) == expected
