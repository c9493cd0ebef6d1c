from collections import Counter

from werdict.error_files import aligned_view, confusions, error_name


def test_words_stand_below_each_other_with_a_mark_below_every_error():
    pairs = [("the", "the"), ("cat", "that"), ("sat", None), (None, "uh")]
    assert aligned_view(pairs).splitlines() == [
        "REF  the  cat   sat  **",
        "HYP  the  that  ***  uh",
        "          S     D    I",
    ]


def test_wide_characters_and_combining_marks_keep_the_columns():
    assert aligned_view([("今天", "a"), ("e\u0301e", "ee"), ("x", "y")]).splitlines() == [
        "REF  今天  e\u0301e  x",
        "HYP  a     ee  y",
        "     S     S   S",
    ]


def test_silence_is_shown_as_two_empty_lines():
    assert aligned_view([]) == "REF\nHYP"


def test_errors_are_counted_by_their_words():
    first = [("two", "too"), ("a", "a"), (None, "uh")]
    second = [("two", "too"), ("the", None)]
    assert confusions([first, second]) == Counter({("two", "too"): 2, (None, "uh"): 1, ("the", None): 1})


def test_an_error_has_a_name():
    assert [error_name(pair) for pair in [("a", "b"), ("a", None), (None, "a"), ("a", "a")]] == [
        "substitution", "deletion", "insertion", "",
    ]  # fmt: skip
