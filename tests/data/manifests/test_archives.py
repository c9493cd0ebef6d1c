import hashlib
import http.server
import io
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from asr.data.manifests.archives import download, extract


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
    assert list((tmp_path / "in").iterdir()) == []
    assert not (tmp_path / "hacked").exists()


def test_an_archive_of_too_many_members_is_refused(tmp_path):
    archive = tar_of(tmp_path / "a.tar.gz", *(member(f"{index}", 0) for index in range(6)))
    with pytest.raises(ValueError, match="more than 5 members"):
        extract(archive, tmp_path / "out", max_members=5)
    assert len(list(extract(archive, tmp_path / "out", max_members=6).iterdir())) == 6


@pytest.mark.parametrize("name", ["/hacked", "../hacked", "C:\\hacked", "a\\..\\..\\hacked"])
def test_a_hostile_zip_is_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        zipped.writestr(zipfile.ZipInfo(name), "x")
    with pytest.raises(ValueError, match="leads out"):
        extract(tmp_path / "a.zip", tmp_path / "out")


def zip_with(path: Path, change: Callable[[zipfile.ZipInfo], None]) -> Path:
    info = zipfile.ZipInfo("one.txt")
    change(info)
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr(info, "/etc/passwd")
    return path


def test_links_in_a_zip_are_refused(tmp_path):
    archive = zip_with(tmp_path / "a.zip", lambda info: setattr(info, "external_attr", 0o120777 << 16))
    with pytest.raises(ValueError, match="only plain files"):
        extract(archive, tmp_path / "out")


def test_an_encrypted_zip_is_refused(tmp_path):
    content = bytearray(zip_with(tmp_path / "a.zip", lambda info: None).read_bytes())
    # the flag stands in the header of the member, and again in the directory at the end
    for flags in (6, content.find(b"PK\x01\x02") + 8):
        content[flags] |= 1
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(ValueError, match="encrypted"):
        extract(tmp_path / "a.zip", tmp_path / "out")


@pytest.mark.parametrize("compression", ["gz", "bz2", "xz"])
@pytest.mark.parametrize("place", [0.5, 0.999])
def test_damage_within_an_archive_is_found(tmp_path, compression, place):
    path = tmp_path / f"a.tar.{compression}"
    noise = np.random.default_rng(0).bytes(200_000)
    with tarfile.open(path, f"w:{compression}") as tar:
        tar.addfile(member("noise", len(noise)), io.BytesIO(noise))
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 0x55
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        extract(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_archive_is_named(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"nothing like it")
    with pytest.raises(ValueError, match="neither"):
        extract(tmp_path / "a.tar", tmp_path / "out")
    whole = tar_of(tmp_path / "b.tar.gz", member("one", 100_000)).read_bytes()
    (tmp_path / "b.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"damaged|neither"):
        extract(tmp_path / "b.tar.gz", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_compressor_that_wants_more_memory_than_there_is_means_damage(monkeypatch, tmp_path):
    def wants_gigabytes(*args, **kwargs):
        raise MemoryError

    archive = tar_of(tmp_path / "a.tar.gz", member("one.txt"))
    monkeypatch.setattr(tarfile, "open", wants_gigabytes)
    with pytest.raises(ValueError, match="is damaged: MemoryError; fetch it again"):
        extract(archive, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [archive]


@pytest.fixture
def address(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"content")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def do_GET(self):
            if self.path.startswith("/to/"):
                self.send_response(302)
                self.send_header("Location", self.path.removeprefix("/to/"))
                self.end_headers()
            elif self.path == "/broken-off":
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b"x" * 10)
            else:
                super().do_GET()

        def log_message(self, *args):
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_a_download_is_checked_and_kept(address, tmp_path):
    path = tmp_path / "deep" / "a.bin"
    for other, kind in (({"sha256": "0" * 64}, "SHA-256"), ({"md5": "0" * 32}, "MD5")):
        with pytest.raises(ValueError, match=f"not what was expected: its {kind} is"):
            download(f"{address}/a.bin", path, **other)
        assert not path.exists()
    assert download(f"{address}/a.bin", path, md5=hashlib.md5(b"content").hexdigest()).read_bytes() == b"content"
    path.unlink()
    assert download(f"{address}/a.bin", path).read_bytes() == b"content"
    assert download("http://127.0.0.1:9/gone", path).read_bytes() == b"content"


def test_no_network_says_what_to_do(address, tmp_path):
    for url in (f"{address}/gone", "http://127.0.0.1:9/a.bin"):
        with pytest.raises(ValueError, match=r"data\.source=PATH"):
            download(url, tmp_path / "b.bin")
    assert not (tmp_path / "b.bin").exists()


def test_a_download_that_breaks_off_is_not_kept(address, tmp_path):
    with pytest.raises(ValueError, match="10 of 1000 bytes"):
        download(f"{address}/broken-off", tmp_path / "a.bin")
    assert not (tmp_path / "a.bin").exists()


@pytest.mark.parametrize("url", ["http://example.org/a.tar", "ftp://127.0.0.1/a.tar", "file:///etc/passwd", "a.tar"])
def test_only_secure_addresses_are_fetched(tmp_path, url):
    with pytest.raises(ValueError, match="only https"):
        download(url, tmp_path / "a.bin")


def test_redirections_are_followed_to_secure_addresses_only(address, tmp_path):
    with pytest.raises(ValueError, match=r"http://192\.0\.2\.1/a\.tar is refused"):
        download(f"{address}/to/http://192.0.2.1/a.tar", tmp_path / "a.bin")
    assert download(f"{address}/to/{address}/a.bin", tmp_path / "a.bin").read_bytes() == b"content"
