"""Archives that recipes unpack, and archives in these: nothing is written outside, and nothing fills the disk."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from asr.recipes.aishell.prepare import prepare_aishell
from asr.recipes.commonvoice.prepare import prepare_commonvoice
from asr.recipes.librispeech.prepare import prepare_librispeech

HOSTILE = {"escape": "leads out of the folder", "link": "is a link", "bomb": "unpacks to more than"}
TRANSCRIPTS = "data_aishell/transcript/aishell_transcript_v0.8.txt"


def hostile(kind: str) -> bytes:
    """Return a tar.gz with one hostile member."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        if kind == "link":
            member = tarfile.TarInfo("train-clean-5")
            member.type, member.linkname = tarfile.SYMTYPE, "/etc"
            tar.addfile(member)
        else:
            member = tarfile.TarInfo("../../hacked" if kind == "escape" else "zeros.wav")
            member.size = 5 if kind == "escape" else 2**28
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return packed.getvalue()


def one_archive(folder: Path, content: bytes) -> Path:
    (folder / "all.tar.gz").write_bytes(content)
    return folder / "all.tar.gz"


def of_a_part(folder: Path, content: bytes) -> Path:
    (folder / "train-clean-5.tar.gz").write_bytes(content)
    return folder


def of_a_speaker(folder: Path, content: bytes) -> Path:
    with tarfile.open(folder / "data_aishell.tgz", "w:gz") as tar:
        for name, data in ((TRANSCRIPTS, b"BAC009S0002W0122 \xe6\x98\xaf"), ("data_aishell/wav/S0002.tar.gz", content)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return folder / "data_aishell.tgz"


def mini(output_dir: Path, source: str) -> object:
    return prepare_librispeech(output_dir, source=source, subsets="mini")


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize(
    ("prepare", "make"),
    [
        (mini, one_archive),
        (mini, of_a_part),
        (prepare_commonvoice, one_archive),
        (prepare_aishell, one_archive),
        (prepare_aishell, of_a_speaker),
    ],
)
def test_hostile_archives_are_refused(
    tmp_path: Path, kind: str, prepare: Callable[..., object], make: Callable[[Path, bytes], Path]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with pytest.raises(ValueError, match=HOSTILE[kind]):
        prepare(tmp_path / "deep" / "er" / "out", source=str(make(source, hostile(kind))))
    assert not list(tmp_path.rglob("hacked"))
    assert not list(tmp_path.rglob("zeros.wav"))
    assert not [path for path in tmp_path.rglob("*") if path.is_symlink()]
