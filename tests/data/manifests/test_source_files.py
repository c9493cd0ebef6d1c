"""Text files of a source, as editors and spreadsheets save them."""

import gzip

import pytest

from asr.data.manifests.source_files import read_lines


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_byte_order_mark_is_no_part_of_a_line_and_utf_16_is_named(tmp_path, name):
    path = tmp_path / name

    def write(content: bytes) -> None:
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)

    write("\ufeffeins\r\nzwei\n".encode())
    assert list(read_lines(path)) == ["eins\r\n", "zwei\n"]
    write("eins\n".encode("utf-16"))
    with pytest.raises(ValueError, match="UTF-16"):
        list(read_lines(path))
