import sys
import unicodedata

import pytest

from werdict.normalization import TextNormalizer

STRIP = TextNormalizer(punctuation="strip")
KEPT = [
    ("composes what can be composed", "cafe\u0301", "caf\u00e9"),
    ("keeps case and punctuation", "Don't stop, NOW!", "Don't stop, NOW!"),
    ("turns every kind of space into one", "\ta\u00a0\u3000b\r\n\u2028c\u2003", "a b c"),
    ("turns control characters into spaces", "a\x00b\x1fc\x85d\x9fe", "a b c d e"),
    ("counts sentencepiece's space marker as a space", "\u2581a\u2581\u2581b", "a b"),
    ("removes direction marks and soft hyphens inside words", "o\u200fn\u00ade", "one"),
    ("composes across a removed soft hyphen", "e\u00ad\u0301", "é"),
    ("keeps signs that are seen", "\u06dd١ \u070fܐ \u0600\u0890\U000110bd", "\u06dd١ \u070fܐ \u0600\u0890\U000110bd"),
    ("makes nothing of nothing", " \n\t\u2581\ufeff ", ""),
    ("keeps Hindi and Persian joiners", "र\u094d\u200dक می\u200cخواهم", "र\u094d\u200dक می\u200cخواهم"),
    ("keeps pointed Hebrew", "בְּרֵאשִׁית בָּרָא", unicodedata.normalize("NFC", "בְּרֵאשִׁית בָּרָא")),
    ("keeps Tibetan stacks", "བསྒྲུབས", "བསྒྲུབས"),
]

STRIPPED = [
    ("keeps the apostrophe", "Don't stop, NOW!", "Don't stop NOW"),
    ("closes a hyphen", "well-known", "wellknown"),
    (
        "parts words at long dashes, slashes and ellipses",
        "yes—no and/or wait…what",
        "yes no and or wait what",
    ),
    ("parts words at runs of punctuation", 'yes--no wait...what "so"("it")', "yes no wait what so it"),
    ("closes abbreviations and numbers", "U.S.A. 1,000.50", "USA 100050"),
    ("keeps Turkish", "İstanbul’da, ılık ırmak!", "İstanbulda ılık ırmak"),
    ("keeps Hindi signs and drops the danda", "नमस्ते दुनिया। क्षत्रिय", "नमस्ते दुनिया क्षत्रिय"),
    ("keeps Thai vowels and tones", "“กิ่งไม้” น้ำแข็ง ฿5", "กิ่งไม้ น้ำแข็ง 5"),
    ("keeps Arabic vowel marks and drops its comma", "السَّلامُ، عَلَيْكُمْ؟", "السَّلامُ عَلَيْكُمْ"),
    (
        "drops emoji with all that hangs on them",
        "I ❤️ you 👩‍🚀👍🏽 🏴\U000e0067\U000e007f 2️⃣",
        "I you 2\ufe0f\u20e3",
    ),
    ("keeps a mark that nothing stands before", "\u0301a", "\u0301a"),
    ("leaves nothing of bare punctuation", "?! … -- ▁", ""),
]


@pytest.mark.parametrize(("text", "expected"), [row[1:] for row in KEPT], ids=[row[0] for row in KEPT])
def test_the_default_normalizer(text, expected):
    assert TextNormalizer()(text) == expected


@pytest.mark.parametrize(("text", "expected"), [row[1:] for row in STRIPPED], ids=[row[0] for row in STRIPPED])
def test_stripping_punctuation(text, expected):
    assert STRIP(text) == expected


def test_kept_characters_are_the_users_choice():
    assert TextNormalizer(punctuation="strip", keep_characters="")("don't") == "dont"
    assert TextNormalizer(punctuation="strip", keep_characters="-’·—")("l’an well-known col·legi—a?") == (
        "l’an well-known col·legi—a"
    )


@pytest.mark.parametrize(
    ("case", "text", "expected"),
    [
        ("lower", "ONE Two ÉTÉ ΟΔΟΣ", "one two été οδος"),
        ("upper", "one Two été straße", "ONE TWO ÉTÉ STRASSE"),
        ("lower", "\u0130", "i\u0307"),  # Unicode's own rule for Turkish İ; documented
        ("keep", "İIıi", "İIıi"),
    ],
)
def test_case_follows_unicode(case, text, expected):
    assert TextNormalizer(case=case)(text) == expected


def test_only_punctuation_symbols_and_what_is_invisible_are_ever_stripped():
    seen = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x200C, 0x200D, 0x110BD, 0x110CD}
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        category = unicodedata.category(character)
        if category in ("Cc", "Cs", "Cn", "Co") or character.isspace():
            continue
        dropped = (category[0] in "PS" and character != "'") or (category == "Cf" and number not in seen)
        expected = "ab" if dropped else unicodedata.normalize("NFC", f"a{character}b")
        assert STRIP(f"a{character}b").replace(" ", "") == expected, f"U+{number:04X} {category}"


@pytest.mark.parametrize("case", ["keep", "lower", "upper"])
@pytest.mark.parametrize("punctuation", ["keep", "strip"])
def test_normalizing_twice_changes_nothing_more(case, punctuation):
    normalize = TextNormalizer(case=case, punctuation=punctuation)
    for start in range(0x20, 0x30000, 7):
        text = "".join(chr(number) for number in range(start, start + 7) if not 0xD800 <= number <= 0xDFFF)
        once = normalize(text)
        assert normalize(once) == once, ascii(text)
        assert once == unicodedata.normalize("NFC", once)


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(ValueError, match=r"character 2 is half of a surrogate pair.*encoding"):
        TextNormalizer()("ab\ud83d")
