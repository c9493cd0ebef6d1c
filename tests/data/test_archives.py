import http.server
import io
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from asr.data.archives import download, extract


def tar_of(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def member(name: str, size: int = 3, **fields) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def test_a_plain_tar_and_zip_are_unpacked_once(tmp_path):
    tar = tar_of(tmp_path / "a.tar.gz", member("top/one.txt"), member("top/deep/two.txt"))
    assert (extract(tar, tmp_path / "out") / "top" / "deep" / "two.txt").read_bytes() == b"xxx"
    tar.unlink()
    extract(tar, tmp_path / "out")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        zipped.writestr("top/one.txt", "hello")
    assert (extract(tmp_path / "a.zip", tmp_path / "zipped") / "top" / "one.txt").read_text() == "hello"


@pytest.mark.parametrize(
    "bad",
    [
        member("/etc/hacked"),
        member("../hacked"),
        member("a/../../hacked"),
        member("link", 0, type=tarfile.SYMTYPE, linkname="/etc"),
        member("link", 0, type=tarfile.LNKTYPE, linkname="../hacked"),
        member("device", 0, type=tarfile.CHRTYPE),
        member("pipe", 0, type=tarfile.FIFOTYPE),
        member("huge", 2000),
    ],
    ids=lambda info: info.name,
)
def test_a_hostile_tar_is_refused_and_leaves_nothing(tmp_path, bad):
    archive = tar_of(tmp_path / "a.tar.gz", member("good.txt"), bad)
    with pytest.raises(ValueError, match="refused"):
        extract(archive, tmp_path / "in" / "out", max_bytes=1000)
    assert not (tmp_path / "in" / "out").exists()
    assert not (tmp_path / "hacked").exists()
    assert not (tmp_path / "in" / "hacked").exists()


@pytest.mark.parametrize("name", ["/hacked", "../hacked", "C:\\hacked", "a\\..\\..\\hacked"])
def test_a_hostile_zip_is_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        zipped.writestr(zipfile.ZipInfo(name), "x")
    with pytest.raises(ValueError, match="leads out"):
        extract(tmp_path / "a.zip", tmp_path / "out")


def test_a_damaged_archive_is_named(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"nothing like it")
    with pytest.raises(ValueError, match="neither"):
        extract(tmp_path / "a.tar", tmp_path / "out")
    whole = tar_of(tmp_path / "b.tar.gz", member("one", 100_000)).read_bytes()
    (tmp_path / "b.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"damaged|neither"):
        extract(tmp_path / "b.tar.gz", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def address(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"content")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args):
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_a_download_is_checked_and_kept(address, tmp_path):
    path = tmp_path / "deep" / "a.bin"
    with pytest.raises(ValueError, match="not what was expected"):
        download(f"{address}/a.bin", path, sha256="0" * 64)
    assert not path.exists()
    assert download(f"{address}/a.bin", path).read_bytes() == b"content"
    assert download("http://127.0.0.1:9/gone", path).read_bytes() == b"content"


def test_no_network_says_what_to_do(address, tmp_path):
    for url in (f"{address}/gone", "http://127.0.0.1:9/a.bin"):
        with pytest.raises(ValueError, match=r"data\.source=PATH"):
            download(url, tmp_path / "b.bin")
    assert not (tmp_path / "b.bin").exists()
