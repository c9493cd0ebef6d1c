import hashlib
import http.server
import io
import tarfile
import threading
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from asr.data.manifests.archives import download, extract
from tests.recipes.miniatures import QuietHandler


def tar_of(path: Path, compression: str = "gz", **contents: bytes) -> Path:
    with tarfile.open(path, f"w:{compression}") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"top/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def test_a_tar_and_a_zip_are_unpacked_once(tmp_path):
    tar = tar_of(tmp_path / "a.tar.gz", one=b"hello")
    assert (extract(tar, tmp_path / "out") / "top" / "one").read_bytes() == b"hello"
    tar.unlink()
    extract(tar, tmp_path / "out")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        zipped.writestr("top/one", "hello")
    assert (extract(tmp_path / "a.zip", tmp_path / "zipped") / "top" / "one").read_text() == "hello"


@pytest.mark.parametrize("compression", ["gz", "bz2", "xz"])
def test_damage_within_an_archive_is_found_and_nothing_is_left(tmp_path, compression):
    path = tar_of(tmp_path / "a.tar", compression, noise=np.random.default_rng(0).bytes(200_000))
    content = path.read_bytes()
    changed = bytearray(content)
    changed[int(len(content) * 0.999)] ^= 0x55  # the checksum at the end, or the last bytes before it
    for damaged in (changed, content[: len(content) // 2], b"no archive"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"a\.tar"):
            extract(path, tmp_path / "in" / "out")
        assert list((tmp_path / "in").iterdir()) == []


class Handler(QuietHandler):
    def do_GET(self):
        if self.path == "/broken-off":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"x" * 10)
        else:
            super().do_GET()


@pytest.fixture
def address(tmp_path):
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "a.bin").write_bytes(b"content")
    handler = partial(Handler, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_download_is_checked_and_kept(address, tmp_path):
    path = tmp_path / "deep" / "a.bin"
    for other in ("0" * 64, "0" * 32):
        with pytest.raises(ValueError, match=r"a\.bin"):
            download(f"{address}/a.bin", path, other)
        assert not path.exists()
    assert download(f"{address}/a.bin", path, hashlib.md5(b"content").hexdigest()).read_bytes() == b"content"
    assert download("http://127.0.0.1:9/gone", path).read_bytes() == b"content"


def test_a_download_that_fails_or_breaks_off_is_not_kept_and_says_what_to_do(address, tmp_path):
    for url in (f"{address}/gone", "http://127.0.0.1:9/a.bin", f"{address}/broken-off"):
        with pytest.raises(ValueError, match=r"data\.source=PATH"):
            download(url, tmp_path / "b.bin")
    assert not (tmp_path / "b.bin").exists()
