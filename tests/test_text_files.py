"""Text files as editors, spreadsheets and other systems save them."""

import gzip
import json
import unicodedata

import pytest

from werdict.text_files import json_objects, read_lines


def write(path, content: bytes) -> None:
    path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_lines_are_composed_and_without_marks_whatever_the_encoding(tmp_path, name, form, encoding):
    text = unicodedata.normalize(form, "\ufeffü\r\né\u2028è\n")
    write(tmp_path / name, text.encode(encoding))
    assert list(read_lines(tmp_path / name)) == ["ü\r\n", "é\u2028è\n"]
    assert "".join(read_lines(tmp_path / name, as_written=True)) == text.removeprefix("\ufeff")


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"one\ntwo\nf\xfcnf\n", "line 3"),
        ("eins\n".encode("utf-16-le"), "UTF-16"),
        (b"one\n\x00\n", "binary"),
        ("eins\nzwei\n".encode("utf-16")[:-1], "line"),
    ],
)
def test_what_is_no_text_is_named_by_its_place(tmp_path, name, content, place):
    write(tmp_path / name, content)
    with pytest.raises(ValueError, match=rf"{name}.*{place}"):
        list(read_lines(tmp_path / name))


def test_letters_that_json_escapes_are_composed_too(tmp_path):
    (tmp_path / "a.json").write_text("\ufeff" + json.dumps({"u\u0308": ["e\u0301", {"a": "e\u0301"}], "n": 1}))
    assert list(json_objects(tmp_path / "a.json")) == [(1, {"ü": ["é", {"a": "é"}], "n": 1})]
    assert [*dict(json_objects(tmp_path / "a.json", as_written=True))[1]] == ["u\u0308", "n"]
