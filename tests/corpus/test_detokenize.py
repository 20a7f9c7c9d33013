"""Text of WikiText becomes text as people write it."""

from ffkv.corpus.detokenize import detokenize

TOKENIZED = [
    ("a state @-@ of @-@ the @-@ art ship", "a state-of-the-art ship"),
    ("1 @,@ 234 @.@ 5 km", "1,234.5 km"),
    (" = = = Early life = = = ", " === Early life === "),
    (" = Robert <unk> = ", " = Robert <unk> = "),
    ('He said , " No ! " , and left .', 'He said, "No!", and left.'),
    ("the ' first ' one", "the 'first' one"),
    ("the students ' books and the dog 's", "the students' books and the dog's"),
    ("they do n't , we 'll", "they don't, we'll"),
    ("they don 't , he said ' twas '", "they don't, he said 'twas'"),
    ("Ain 't it 't Hooft", "Ain't it 't Hooft"),
    ("( 1999 ) [ a ] { b } $ 5 , £ 6", "(1999) [a] {b} $5, £6"),
    ("at 9 : 30 ; 50 % of x : 1 / 2 / 3", "at 9:30; 50% of x: 1/2/3"),
    ("from 1939 – 45 – or so – he / she", "from 1939–45 – or so – he / she"),
    ("wait ... what ? !", "wait... what?!"),
    ("x = y and a = = b", "x = y and a = = b"),
    ('one " alone', 'one " alone'),
    ("already raw, isn't it? (yes)", "already raw, isn't it? (yes)"),
    ("", ""),
]


def test_signs_go_back_to_their_words(subtests):
    for tokenized, raw in TOKENIZED:
        with subtests.test(tokenized=tokenized, raw=raw):
            assert detokenize(tokenized) == raw


def test_lines_stay_apart():
    assert detokenize(' = = A = = \n \n " b \n c " . \n') == ' == A == \n \n " b \n c ". \n'
