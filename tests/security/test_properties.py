"""Whatever is typed, or lies in a file: a message at worst; no traceback, no file outside the folder that is given."""

import contextlib
import functools
import io
import json
import math
import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.configuration
import pytest
import torch
from hydra import compose, initialize_config_dir
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from asr.cli.app import run_app
from asr.cli.builders.dry_run import dry_run
from asr.cli.builders.parts import build_recognizer
from asr.cli.builders.parts import plain as plain_config
from asr.cli.builders.restore import recognizer_of
from asr.cli.config.help import CONFIGS
from asr.data.manifests.tables import OPTIONAL, REQUIRED
from asr.training.checkpoints.loading import FORMAT, load_checkpoint
from asr.training.weights import KINDS, choose_weights
from tests.training.tiny import TOKENIZER

SCRIPTS = Path(__file__).parents[2] / "scripts"
# beside the tests, hypothesis would keep what it knows in the working directory
hypothesis.configuration.set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "werdict-hypothesis")


def examples(number: int) -> settings:
    """Try so many; always the same ones where CI is set, so that it fails for a change of the code alone."""
    return settings(
        max_examples=number,
        deadline=None,
        database=None,
        derandomize="CI" in os.environ,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
plain |= st.sampled_from(
    ["/dev/zero", "../x", "pipe:touch x|", "${oc.env:HOME}", "\ud800", "nan", "[/x]", "\x1b[2J", 2**63]
)
nested = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@st.composite
def spoiled(draw, whole: Any) -> Any:
    """Return a mapping in which one value, however deep, is another, is missing, or has a neighbor."""
    places = list(_places(whole))
    *path, last = draw(st.sampled_from(places))
    made = json.loads(json.dumps(whole))
    node = made
    for key in path:
        node = node[key]
    if draw(st.booleans()) and isinstance(node, dict):
        del node[last]
    else:
        node[last] = draw(nested)
    return made


def _places(node: Any, path: tuple[Any, ...] = ()) -> Any:
    for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield (*path, key)
        yield from _places(node[key], (*path, key))


@pytest.fixture(scope="module")
def fuzzing(tmp_path_factory):
    """Return the modules of readers, and what finds out how one answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        import fuzz_readers
        from fuzz_watch import Watch
    return fuzz_readers, Watch(tmp_path_factory.mktemp("properties") / "input").find


@examples(600)
@given(data=st.data())
def test_a_table_is_read_or_refused(fuzzing, data):
    readers, find = fuzzing
    cell = st.text(max_size=12) | st.sampled_from(
        ["a.wav", "/b.wav", "~nobody/c", "train", "dev", "", "\0", "..", "\ufeff"]
    )
    header = data.draw(st.permutations([*REQUIRED, *OPTIONAL]) | st.lists(cell, max_size=6))
    kept = header[: data.draw(st.integers(2, 5))]
    rows = data.draw(st.lists(st.lists(cell, min_size=len(kept), max_size=len(kept)) | st.lists(cell), max_size=5))
    end = data.draw(st.sampled_from(["\n", "\r\n", "\r", "\u2028", "\n\n"]))
    text = end.join("\t".join(fields) for fields in [kept, *rows])
    encoding = data.draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16"]))
    content = text.encode(encoding, "surrogatepass")
    assert find(readers.READERS["table"].read, content) is None, content


@examples(700)
@given(data=st.data())
def test_a_manifest_is_read_or_refused(fuzzing, data):
    readers, find = fuzzing
    kind = data.draw(st.integers(0, len(readers.JSONL) - 1))
    good = readers.JSONL[kind][1]
    items = data.draw(st.lists(st.just(good) | spoiled(good) | nested, min_size=1, max_size=3))
    lines = [json.dumps(item, ensure_ascii=data.draw(st.booleans())) for item in items]
    content = "\n".join([*lines, data.draw(st.text(max_size=10))]).encode("utf-8", "surrogatepass")
    assert find(readers.READERS["jsonl"].read, bytes([kind]) + content) is None, content


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "name": st.text(max_size=300)
    | st.sampled_from(["../x", "/x", "a/../../x", "..", ".", "", "a/" * 200, "x" * 5000, "~/x"]),
    "linkname": st.text(max_size=200) | st.sampled_from(["/etc", "../x"]),
    "size": st.integers(0, 2**33),
    "mode": st.integers(0, 0o7777),
    "uid": st.integers(0, 2**40),
    "mtime": st.integers(-(2**33), 2**40) | st.floats(0, 1e12),
    "type": st.sampled_from([bytes([code]) for code in b"\001234567LKSxgXDVN"]) | st.binary(min_size=1, max_size=1),
    "uname": st.text(max_size=40),
    "pax_headers": st.dictionaries(
        st.text(max_size=10)
        | st.sampled_from(["path", "size", "linkpath", "GNU.sparse.map", "GNU.sparse.size", "mtime"]),
        st.text(max_size=20) | st.sampled_from(["-1", "9" * 30, "1,2,3", "../x", "nan"]),
        max_size=3,
    ),
}


@st.composite
def tars(draw) -> bytes:
    """Return a tar of members with any fields, and headers with any bytes."""
    form = draw(st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
    made = b""
    for fields in draw(st.lists(st.fixed_dictionaries({}, optional=FIELDS), min_size=1, max_size=3)):
        info = tarfile.TarInfo("a")
        vars_ = {"size": 3, **fields}
        for name, value in vars_.items():
            setattr(info, name, value)
        try:
            header = info.tobuf(form, "utf-8", "surrogateescape")
        except ValueError:  # the format has no room for it
            header = tarfile.TarInfo("b").tobuf(form)
        made += header + b"abc".ljust(tarfile.BLOCKSIZE, b"\0")
    made = bytearray(made + bytes(2 * tarfile.BLOCKSIZE))
    for at, byte in draw(st.lists(st.tuples(st.integers(0, len(made) - 1), st.integers(0, 255)), max_size=4)):
        made[at] = byte
    return bytes(made)


@examples(400)
@given(content=tars(), form=st.sampled_from("rtz"))
def test_a_tar_is_unpacked_or_refused(fuzzing, content, form):
    readers, find = fuzzing
    assert find(readers.READERS["archive"].read, form.encode() + content) is None


ENCODER = {"_target_": "asr.models.encoders.transformer.TransformerEncoder", "d_model": 12, "num_layers": 1}
ENCODER |= {"num_heads": 2, "d_feedforward": 16, "dropout": 0.0, "subsampling_channels": 2}
AVERAGES = {"start_update": 0, "update": 2, "num_averaged": 2, "ema_updates": 2, "ema": None, "sum": {}, "marks": []}
AVERAGES["marks"] = [{"update": 0, "num_averaged": 0, "mean": {}}, {"update": 1, "num_averaged": 1, "mean": {}}]
PARTS = {
    "werdict": {
        "format": FORMAT,
        "config": {
            "seed": 1,
            "encoder": ENCODER,
            "head": {"_target_": "asr.models.heads.ctc.CtcHead"},
            "augment": {"features": None},
        },
        "tokenizer": TOKENIZER.state(),
        "data": {"folder": "data", "fingerprint": "f", "notes": []},
    },
    "state_dict": {},
    "global_step": 2,
    "callbacks": {"averaging": {"every": 1}},
    "averages": AVERAGES,
}


def _use(path: Path) -> None:
    loaded = load_checkpoint(path)
    for kind in KINDS:
        try:
            recognizer_of(choose_weights(loaded, kind))
        except ValueError:
            continue


def _checkpoint(data: bytes, folder: Path) -> None:
    (folder / "last.ckpt").write_bytes(data)
    _use(folder / "last.ckpt")


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    built = build_recognizer(PARTS["werdict"]["config"], TOKENIZER.vocab_size, [0.0] * 8, [1.0] * 8)
    return {f"recognizer.{name}": tensor for name, tensor in built.state_dict().items()}


@examples(340)
@given(parts=spoiled(PARTS))
def test_the_plain_parts_of_a_checkpoint_are_used_or_refused(fuzzing, weights, parts):
    _, find = fuzzing
    if parts.get("state_dict") == {}:
        parts["state_dict"] = weights
    buffer = io.BytesIO()
    torch.save(parts, buffer)
    assert find(_checkpoint, buffer.getvalue()) is None


def test_a_checkpoint_whose_parts_are_in_order_is_used(weights, tmp_path):
    torch.save({**PARTS, "state_dict": weights}, tmp_path / "last.ckpt")
    recognizer_of(choose_weights(load_checkpoint(tmp_path / "last.ckpt"), "average"))


VALUES = (
    "",
    "null",
    "[]",
    "{}",
    "[1,{a:b}]",
    "{_target_:os.system}",
    "true",
    "/dev/null/x",
    "a b",
    "[/x]",
    "???",
    "\0",
)
VALUES += ("${seed}", "${nothing}", "${oc.env:HOME}", "1e400", "'", '"', "\\", "x" * 300, "-1e-400", "1,2", "glob(*)")


@functools.cache
def known_words() -> list[str]:
    """Return every key of the composed config with its value, and some words that choose or add."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = OmegaConf.to_container(compose("train"))
    words = [f"{'.'.join(map(str, path))}={_at(config, path)}" for path in _places(config)]
    return [
        *words,
        "optimizer=eve",
        "encoder=zipformer_xs",
        "recipe=digits/zipformer_xs_ctc",
        "+trainer.profiler=simple",
    ]


def _at(node: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        node = node[key]
    return node


@st.composite
def words(draw) -> str:
    """Return a word of a command line: a key that exists with another value, or one with characters changed."""
    word = draw(st.sampled_from(known_words()))
    mark = draw(st.sampled_from(["", "", "", "+", "++", "~"]))
    if draw(st.booleans()):
        number = st.integers(-3, 20) | st.floats(-2, 2) | st.sampled_from([math.inf, math.nan, 2**64])
        value = st.text(max_size=12) | number.map(str) | st.sampled_from(VALUES)
        return f"{mark}{word.partition('=')[0]}={draw(value)}"
    at = draw(st.integers(0, len(word)))
    return mark + word[:at] + draw(st.text(max_size=3)) + word[at + draw(st.integers(0, 2)) :]


@examples(40)
@given(typed=st.lists(words(), min_size=1, max_size=2))
def test_a_command_line_is_composed_or_refused(typed):
    num_threads, random_state = torch.get_num_threads(), torch.get_rng_state()
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.chdir(folder)
        patch.delenv("HYDRA_FULL_ERROR", raising=False)
        patch.setattr(sys, "argv", ["asr-train", "logger=none", *typed])
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                run_app("train", lambda config: dry_run(plain_config(config)))
                code = 0
            except SystemExit as left:
                code = left.code
        assert os.listdir(folder) == []
    torch.set_num_threads(num_threads)
    torch.set_rng_state(random_state)
    assert code in (0, 2), said.getvalue()
    assert "Traceback" not in said.getvalue()
    assert code == 0 or said.getvalue().strip()
