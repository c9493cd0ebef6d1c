"""A checkpoint may come from a stranger: it runs nothing, takes little memory, and is refused in one line."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from asr.training.checkpoints.files import point_link, update_file
from asr.training.checkpoints.loading import load_checkpoint
from asr.training.resuming.resume_checks import check_schedule
from asr.training.weights import choose_weights
from tests.small_runs import TINY

State = dict[str, Any]
MOST_S, MOST_MB = 10, 1000  # that refusing takes


def saved(run_dir: Path) -> State:
    return torch.load(run_dir / "checkpoints" / "last.ckpt", weights_only=True)


def node_at(state: State, key: str) -> tuple[Any, Any]:
    """Return the mapping or list that holds a dotted key, and the last name of it."""
    *parents, name = [int(part) if part.isdecimal() else part for part in key.split("/")]
    node: Any = state
    for parent in parents:
        node = node[parent]
    return node, name


def put(key: str, value: Any) -> Callable[[State], None]:
    """Replace a part, named by its path."""

    def change(state: State) -> None:
        node, name = node_at(state, key)
        node[name] = value

    return change


def drop(key: str) -> Callable[[State], None]:
    def change(state: State) -> None:
        node, name = node_at(state, key)
        del node[name]

    return change


def without_averages(change: Callable[[State], None]) -> Callable[[State], None]:
    """Let the averages not be what gives a change away."""

    def both(state: State) -> None:
        del state["averages"]
        change(state)

    return both


def nested(depth: int) -> list[Any]:
    node: list[Any] = []
    for _ in range(depth):
        node = [node]
    return node


def shared(depth: int) -> list[Any]:
    """Return what is 2 ** depth lists to whoever walks it."""
    node: list[Any] = []
    for _ in range(depth):
        node = [node, node]
    return node


def diverge(state: State) -> None:
    for weight in state["state_dict"].values():
        if weight.is_floating_point():
            weight.fill_(float("nan"))


def grow(state: State) -> None:
    for name, weight in state["state_dict"].items():
        if weight.is_floating_point():
            state["state_dict"][name] = torch.full_like(weight.double(), 1e39)


FIRST = "encoder.subsampling.convolutions.0.weight"
MEAN, WEIGHT = "state_dict/recognizer.normalize.mean", f"state_dict/recognizer.{FIRST}"
CONFIG = "werdict/config"
GREEDY_TRANSDUCER = "asr.decoding.transducer_greedy.TransducerGreedy"
PARTS = {
    "no part of ours": (drop("werdict"), "it has no mapping 'werdict'"),
    "our part is a list": (put("werdict", [1]), "werdict is a list"),
    "our part is null": (put("werdict", None), "it has no mapping 'werdict'"),
    "format as a list": (put("werdict/format", [1]), "its format is [1]; this version reads 2"),
    "tokenizer null": (put("werdict/tokenizer", None), "it has no mapping 'tokenizer'"),
    "tokenizer a list": (put("werdict/tokenizer", []), "tokenizer is a list"),
    "tokenizer a tensor": (put("werdict/tokenizer", torch.ones(3)), "tokenizer is a Tensor"),
    "tokenizer with a tensor": (put("werdict/tokenizer/pieces", torch.ones(3)), "pieces is a Tensor"),
    "tokenizer of another kind": (put("werdict/tokenizer/kind", "x"), "kind 'x' is unknown"),
    "kind a list": (put("werdict/tokenizer/kind", []), "kind [] is unknown"),
    "a piece that begins a line": (
        put("werdict/tokenizer/pieces", ["<blk>", "<unk>", "\n"]),
        r"pieces ['\n'] are whitespace or control characters",
    ),
    "pieces null": (put("werdict/tokenizer/pieces", None), "its state holds no list 'pieces'"),
    "pieces of numbers": (put("werdict/tokenizer/pieces", ["<blk>", "<unk>", 3]), "are not one character each"),
    "half of a surrogate pair as a piece": (
        put("werdict/tokenizer/pieces", ["<blk>", "<unk>", "\ud800"]),
        r"pieces ['\ud800'] are halves of surrogate pairs",
    ),
    "weights that have diverged": (diverge, "holds numbers that are not finite: the model has diverged"),
    "weights that are finite in 64 bits alone": (grow, "holds numbers that are not finite: the model has diverged"),
    "pieces missing": (put("werdict/tokenizer/pieces", ["<blk>", "<unk>", "a"]), "its weights do not fit its config"),
    "a broken model of pieces": (
        put("werdict/tokenizer", {"kind": "sentencepiece", "model": "AAAA"}),
        "sentencepiece",
    ),
    "config null": (put(CONFIG, None), "it has no mapping 'config'"),
    "config a list": (put(CONFIG, [1]), "config is a list"),
    "config empty": (put(CONFIG, {}), "seed must be a number of at least 0, and is None"),
    "config with a number as key": (put(f"{CONFIG}/encoder", {1: 2}), "only text is allowed"),
    "config nested": (put(f"{CONFIG}/data", nested(100)), "nests them deeper than 50"),
    "config shared": (put(f"{CONFIG}/data", shared(40)), "more than"),
    "encoder null": (put(f"{CONFIG}/encoder", None), "encoder must not be null"),
    "encoder a list": (put(f"{CONFIG}/encoder", [1]), "encoder must hold _target_"),
    "encoder without a target": (put(f"{CONFIG}/encoder", {}), "encoder._target_ must be the name of a class"),
    "encoder of another module": (put(f"{CONFIG}/encoder/_target_", "os.system"), "trust=[os]"),
    "encoder with a list for a number": (put(f"{CONFIG}/encoder/d_model", [1, 2]), "encoder.d_model"),
    "layers missing": (put(f"{CONFIG}/encoder/num_layers", 0), "num_layers"),
    "more layers": (put(f"{CONFIG}/encoder/num_layers", 2), "its weights do not fit its config"),
    "no head": (drop(f"{CONFIG}/head"), "head is missing"),
    "seed as text": (put(f"{CONFIG}/seed", "one"), "seed must be a number of at least 0, and is 'one'"),
    "no seed": (drop(f"{CONFIG}/seed"), "seed must be a number of at least 0, and is None"),
    "a width of 6000 digits": (put(f"{CONFIG}/encoder/d_model", 1 << 20000), "a number of more than 255 bytes"),
    "a width that was never given": (put(f"{CONFIG}/encoder/d_model", "???"), "encoder.d_model"),
    "a decoder that does not leave a frame": (
        put(f"{CONFIG}/decoder", {"_target_": GREEDY_TRANSDUCER, "max_symbols": 10**6}),
        "decoder: max_symbols must be at least 1 and at most 100, given 1000000",
    ),
    "features null": (put(f"{CONFIG}/features", None), "features must not be null"),
    "other features": (put(f"{CONFIG}/features/num_mels", 40), "features have 40 numbers per frame, its weights 80"),
    "data null": (put("werdict/data", None), "it has no mapping 'data'"),
    "data folder a number": (put("werdict/data/folder", 5), "werdict.data.folder must be text, and is 5"),
    "no fingerprint": (drop("werdict/data/fingerprint"), "werdict.data.fingerprint must be text"),
    "notes as text": (put("werdict/data/notes", "x"), "werdict.data.notes must be a list of texts"),
    "weights a list": (put("state_dict", [1]), "state_dict is a list"),
    "weights null": (put("state_dict", None), "it has no mapping 'state_dict'"),
    "no weights": (without_averages(put("state_dict", {})), "it has no statistics of features"),
    "a number as a weight": (put(WEIGHT, 3), "is not a weight but a int"),
    "text as a weight": (put(WEIGHT, "x"), "is not a weight but a str"),
    "a weight of no dimension": (
        without_averages(put(WEIGHT, torch.tensor(1.0))),
        f"{FIRST} is torch.float32 of shape []",
    ),
    "statistics of no dimension": (put(MEAN, torch.tensor(1.0)), "it has no statistics of features"),
    "no statistics": (drop(MEAN), "it has no statistics of features"),
    "other statistics": (put(MEAN, torch.ones(40)), "of shape [80], not torch.float32 of [40]"),
    "whole numbers as a weight": (put(WEIGHT, torch.ones(2, 1, 3, 3, dtype=torch.int64)), "is torch.int64"),
    "a weight is missing": (without_averages(drop(WEIGHT)), "is missing"),
    "a weight more": (put("state_dict/recognizer.new", torch.ones(3)), "new is not known"),
    "an update as text": (put("global_step", "many"), "global_step must be a number of at least 0, and is 'many'"),
    "an update below 0": (put("global_step", -1), "global_step must be a number of at least 0"),
    "an update that is true": (put("global_step", True), "global_step must be a number of at least 0"),
    "an endless update": (put("global_step", float("inf")), "global_step must be a number of at least 0"),
    "no update": (drop("global_step"), "global_step must be a number of at least 0"),
    "callbacks a list": (put("callbacks", [1]), "callbacks is a list"),
    "averages a list": (put("averages", [1]), "averages is a list"),
    "averages empty": (put("averages", {}), "start_update must be a number"),
    "no count": (put("averages/num_averaged", float("nan")), "num_averaged must be a number of at least 0, and is nan"),
    "a count of 0": (put("averages/num_averaged", 0), "none is left"),
    "a count below the mark's": (put("averages/num_averaged", 1), "none is left"),
    "sums of other names": (put("averages/sum/x", torch.ones(3)), "has weights of other names, such as 'x'"),
    "sums of other shapes": (put(f"averages/sum/{FIRST}", torch.ones(3).double()), "of shape [3]"),
    "sums in another type": (put(f"averages/sum/{FIRST}", torch.ones(2, 1, 3, 3)), "not torch.float64"),
    "sums null": (put("averages/sum", None), "it has no mapping 'sum'"),
    "a sum that is none": (put(f"averages/sum/{FIRST}", None), "is not a weight but a NoneType"),
    "no marks": (put("averages/marks", []), "a list of one or two marks"),
    "marks a mapping": (put("averages/marks", {}), "a list of one or two marks"),
    "a mark that is none": (put("averages/marks/0", 7), "averages.marks.0 is a int"),
    "a mark without means": (put("averages/marks/0/mean", {}), "has 0 weights, not the"),
    "ema of other names": (put("averages/ema", {}), "averages.ema has 0 weights"),
    "averages too large": (
        put(f"averages/sum/{FIRST}", torch.full((2, 1, 3, 3), 1e300, dtype=torch.float64)),
        "holds numbers that are too large for torch.float32",
    ),
    "averages of the future": (put("averages/update", 999), "averages.update is 999 after 6 updates"),
    "ema a list": (put("averages/ema", [1]), "ema is a list"),
}


def evaluate(small_run, path: Path):
    return small_run.run("transcribe", f"run={path}", f"audio={small_run.audio()}", "torch_threads=1")


def changed(small_run, tmp_path: Path, change: Callable[[State], None]) -> Path:
    state = saved(small_run.run_dir)
    change(state)
    torch.save(state, tmp_path / "a.ckpt")
    return tmp_path / "a.ckpt"


@pytest.mark.parametrize(("change", "said"), PARTS.values(), ids=PARTS)
def test_a_malformed_part_is_refused_in_one_line(small_run, tmp_path, change, said):
    ended = evaluate(small_run, changed(small_run, tmp_path, change))
    assert ended.code == 2, ended.printed
    assert said in ended.last_line
    assert "weights_only" not in ended.printed
    assert str(tmp_path / "a.ckpt") in ended.last_line
    assert "Traceback" not in ended.printed
    assert len(ended.printed.splitlines()) <= 2


@pytest.mark.parametrize("folder", ["a" * 5000, "/" + "a/" * 2500, "a" * 300, "a\0b", "/root/../proc/1/cwd/x"])
def test_a_folder_of_data_that_cannot_be_is_named_in_short(small_run, tmp_path, folder):
    path = changed(small_run, tmp_path, put("werdict/data/folder", folder))
    ended = small_run.run("evaluate", f"run={path}", f"output_dir={tmp_path / 'out'}")
    assert ended.code == 2, ended.printed
    assert "the data of this run is no longer at " in ended.last_line
    assert "manifest=PATH" in ended.last_line
    assert len(ended.last_line) < 300


def test_a_step_that_torch_does_not_know_brings_no_advice_of_its_own(tmp_path, monkeypatch):
    torch.save({"a": 1 << 20000}, tmp_path / "a.ckpt")
    monkeypatch.setattr("asr.training.checkpoints.loading.damage", lambda path: "")
    with pytest.raises(ValueError, match=r"its data\.pkl cannot be read: Unsupported operand 139$"):
        load_checkpoint(tmp_path / "a.ckpt")


def test_an_unchanged_checkpoint_is_read(small_run, tmp_path):
    """Or else all of these would say nothing."""
    ended = evaluate(small_run, changed(small_run, tmp_path, lambda state: None))
    assert (ended.code, ended.last_line.startswith(str(small_run.audio()))) == (0, True)


def expanded(state: State) -> None:
    state["state_dict"]["recognizer.big"] = torch.zeros(1).expand(10**12)


def strided(state: State) -> None:
    state["state_dict"]["recognizer.big"] = torch.zeros(2**20).as_strided((2**20, 2**20 - 2**10), (0, 1))


def sparse(state: State) -> None:
    state["state_dict"]["recognizer.big"] = torch.sparse_coo_tensor([[0]], [1.0], (10**12,))


def meta(state: State) -> None:
    state["state_dict"]["recognizer.big"] = torch.empty(10**12, device="meta")


def quantized(state: State) -> None:
    state["state_dict"]["recognizer.big"] = torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8)


def many_views(state: State) -> None:
    """A thousand weights of one storage; built, they would have a thousand."""
    big = torch.zeros(2**20)
    state["state_dict"] |= {f"recognizer.big{number}": big for number in range(1000)}


def deep(state: State) -> None:
    state["loops"] = nested(100)


def endless(state: State) -> None:
    state["loops"] = shared(60)


BOMBS = {
    "a tensor that is expanded": (expanded, "of which the file has"),
    "a tensor with a stride of 0": (strided, "of which the file has"),
    "a sparse tensor": (sparse, "it calls torch._utils._rebuild_sparse_tensor"),
    "a tensor without memory": (meta, "it calls torch._utils._rebuild_meta_tensor_no_storage"),
    "a quantized tensor": (quantized, "it calls torch._utils._rebuild_qtensor"),
    "many names of one tensor": (many_views, "its weights do not fit its config"),
    "nested parts": (deep, "nests them deeper than 50"),
    "shared parts": (endless, "it holds more than"),
}


@pytest.mark.parametrize(("change", "said"), BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_early(small_run, tmp_path, change, said):
    ended = evaluate(small_run, changed(small_run, tmp_path, change))
    assert ended.code == 2, ended.printed
    assert said in ended.last_line
    assert len(ended.printed.splitlines()) <= 2
    assert ended.peak_mb < MOST_MB
    assert ended.seconds < MOST_S


def repacked(good: bytes, **options: Any) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(good)) as old, zipfile.ZipFile(made, "w", **options) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return made.getvalue()


def with_pickle(content: bytes, compression: int = zipfile.ZIP_STORED) -> Callable[[bytes], bytes]:
    """Put other steps into the pickle."""

    def change(good: bytes) -> bytes:
        made = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(good)) as old, zipfile.ZipFile(made, "w") as new:
            for name in old.namelist():
                new.writestr(name, content if name.endswith("data.pkl") else old.read(name), compression)
        return made.getvalue()

    return change


def deflated_tensor(good: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(good)) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
        with new.open(zipfile.ZipInfo("a/data/999"), "w", force_zip64=True) as part:
            for _ in range(64):
                part.write(bytes(2**20))
    return repacked(made.getvalue(), compression=zipfile.ZIP_DEFLATED)


def overlapping(good: bytes) -> bytes:
    """Name one large part a thousand times in the list of parts."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as new:
        new.writestr("a/data/0", bytes(2**20))
        for number in range(1, 1000):
            again = zipfile.ZipInfo(f"a/data/{number}")
            first = new.filelist[0]
            for key in ("header_offset", "CRC", "file_size", "compress_size"):
                setattr(again, key, getattr(first, key))
            new.filelist.append(again)
            new.NameToInfo[again.filename] = again
        new._didModify = True
    return made.getvalue()


def twice(good: bytes) -> bytes:
    made = io.BytesIO(good)
    with zipfile.ZipFile(made, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(archive.namelist()[0], b"other")
    return made.getvalue()


def two_pickles(good: bytes) -> bytes:
    made = io.BytesIO(good)
    with zipfile.ZipFile(made, "a") as archive:
        archive.writestr("other/data.pkl", pickle.dumps({}))
    return made.getvalue()


def with_comment(good: bytes) -> bytes:
    return good[:-2] + (1000).to_bytes(2, "little") + good[:1000]


def with_locator_elsewhere(good: bytes) -> bytes:
    """Let a record for large files, which zipfile takes, be followed by a locator of another one."""
    end = good[-22:]
    size, place = struct.unpack("<II", end[12:20])
    (num_parts,) = struct.unpack("<H", end[10:12])
    record = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, num_parts, num_parts, size, place)
    return good[:-22] + record + struct.pack("<IIQI", 0x07064B50, 0, 0, 1) + end


def many_parts(good: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for number in range(100_000):
            archive.writestr(f"{number:080}", b"")
    return made.getvalue()


class Calls:
    """Pickled as a call of a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


FILES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "compressed parts": (lambda good: repacked(good, compression=zipfile.ZIP_DEFLATED), "is compressed"),
    "a compressed tensor": (deflated_tensor, "is compressed"),
    "a compressed pickle": (with_pickle(b"\x80\x02" + b"N0" * 10**7, zipfile.ZIP_DEFLATED), "is compressed"),
    "two archives": (lambda good: repacked(good) * 2, "not where the end of the file says"),
    "an archive after something": (lambda good: b"x" + repacked(good), "not where the end of the file says"),
    "an archive before something": (lambda good: with_comment(repacked(good)), "not where the end of the file says"),
    "two lists of parts": (lambda good: with_locator_elsewhere(repacked(good)), "states two places"),
    "parts that overlap": (overlapping, "its parts overlap"),
    "a part twice": (twice, "two of its parts have one name"),
    "two pickles": (two_pickles, "it has 2 parts data.pkl, not one"),
    "a hundred thousand parts": (many_parts, "would have to be read at once"),
    "a huge pickle": (with_pickle(b"\x80\x02X" + (2**25).to_bytes(4, "little") + bytes(2**25)), "too many for"),
    "a pickle of many steps": (with_pickle(b"\x80\x02" + b"N0" * 2_000_000 + b"N."), "has more than 1"),
    "a pickle of many lists": (with_pickle(b"\x80\x02" + b"]" * 3_000_000 + b"."), "has more than 1"),
    "a call of the shell": (with_pickle(pickle.dumps(Calls(os.system, "touch ran"), 2)), "it calls posix.system"),
    "bytes without end": (with_pickle(pickle.dumps(Calls(bytearray, 10**11), 2)), "it calls __builtin__.bytearray"),
    "a tensor without end": (with_pickle(pickle.dumps(Calls(torch.Tensor, 10**11), 2)), "it calls torch.Tensor"),
    "a newer pickle": (with_pickle(pickle.dumps(Calls(os.system, "touch ran"), 4)), "STACK_GLOBAL"),
    "an older pickle": (with_pickle(b"(S'touch ran'\nios\nsystem\n."), "the step INST"),
    "a list": (with_pickle(pickle.dumps([1], 2)), "it is a list"),
    "a number": (with_pickle(b"\x80\x02K\x01."), "it is a int"),
    "an empty mapping": (with_pickle(b"\x80\x02}."), "it has no mapping 'werdict'"),
    "an endless mapping": (with_pickle(b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s."), "deeper than 50"),
    "an archive without anything": (lambda good: b"PK\5\6" + bytes(18), "it has 0 parts data.pkl"),
    "text": (lambda good: b"hello", "File is not a zip file"),
}


@pytest.mark.parametrize(("change", "said"), FILES.values(), ids=FILES)
def test_a_hostile_file_is_refused_before_it_is_read(small_run, tmp_path, change, said):
    good = (small_run.run_dir / "checkpoints" / "last.ckpt").read_bytes()
    (tmp_path / "a.ckpt").write_bytes(change(good))
    ended = evaluate(small_run, tmp_path / "a.ckpt")
    assert ended.code == 2, ended.printed
    assert said in ended.last_line
    assert len(ended.printed.splitlines()) <= 2
    assert ended.peak_mb < MOST_MB
    assert ended.seconds < MOST_S
    assert not (small_run.folder / "ran").exists()


DONE = "loops/fit_loop/epoch_loop.batch_progress"


def change_state(callback: str, key: str, value: object) -> Callable[[State], None]:
    def change(state: State) -> None:
        state["callbacks"][callback][key] = value

    return change


def change_steps(value: float) -> Callable[[State], None]:
    def change(state: State) -> None:
        for moments in state["optimizer_states"][0]["state"].values():
            moments["step"] = torch.tensor(value)

    return change


def fill_moments(key: str, value: float) -> Callable[[State], None]:
    def change(state: State) -> None:
        state["optimizer_states"][0]["state"][0][key].fill_(value)

    return change


RESUMED = {
    "optimizer states a mapping": put("optimizer_states", {}),
    "no optimizer states": drop("optimizer_states"),
    "optimizer states empty": put("optimizer_states", []),
    "an optimizer state that is none": put("optimizer_states/0", 5),
    "moments of no parameter": put("optimizer_states/0/state", {}),
    "moments of other shapes": put("optimizer_states/0/state/0/exp_avg", torch.ones(7)),
    "moments of a parameter missing": drop("optimizer_states/0/state/3"),
    "averages of squares below 0": fill_moments("exp_avg_sq", -1.0),
    "other options than the config's": put("optimizer_states/0/param_groups/0/betas", (0.1, 0.1)),
    "uphill": put("optimizer_states/0/param_groups/1/maximize", True),
    "rates of another schedule": put("lr_schedulers/0/base_lrs", [-1.0, 1.0]),
    "a save in the future": put("callbacks/CheckpointCallback/saved_update", 6),
    "a best in the future": put("callbacks/CheckpointCallback/best_update", 9),
    "fewer errors than none": put("callbacks/CheckpointCallback/best_wer", -1.0),
    "a trend of another kind": put("callbacks/StallWarning", {"trend": 5}),
    "moments as text": put("optimizer_states/0/state/0/exp_avg", "x"),
    "fewer groups of parameters": put("optimizer_states/0/param_groups", []),
    "betas as text": put("optimizer_states/0/param_groups/0/betas", "x"),
    "schedules a mapping": put("lr_schedulers", {}),
    "a schedule that is none": put("lr_schedulers/0", None),
    "loops a list": put("loops", []),
    "no loops": drop("loops"),
    "an epoch as text": put("epoch", "x"),
    "more epochs than updates": put("epoch", 4),
    "another number of updates": put("global_step", 4),
    "micro-batches without end": put(f"{DONE}/total/processed", 2**62),
    "an epoch without end": put(f"{DONE}/current/processed", 2**62),
    "more micro-batches than in total": put(f"{DONE}/current/processed", 4),
    "micro-batches below zero": put(f"{DONE}/current/processed", -1),
    "a fraction of a micro-batch": put(f"{DONE}/current/processed", 1.5),
    "epochs without end": put("loops/fit_loop/epoch_progress/total/ready", 2**62),
    "another place of the loader": put("loops/fit_loop/state_dict/combined_loader/0/processed", 1),
    "loaders as text": put("loops/fit_loop/state_dict/combined_loader", "x"),
    "validations below zero": put("loops/fit_loop/epoch_loop.val_loop.batch_progress/total/ready", -1),
    "rates of no group": put("lr_schedulers/0/base_lrs", []),
    "a rate as text": put("lr_schedulers/0/base_lrs", ["x", 1.0]),
    "a rate that is no number": put("lr_schedulers/0/base_lrs", [float("nan"), 1.0]),
    "a schedule ahead of its run": put("lr_schedulers/0/batch", 2**62),
    "a schedule before its beginning": put("lr_schedulers/0/batch", -1),
    "progress as text": put("loops/fit_loop/epoch_progress", "x"),
    "a callback that is none": put("callbacks/TrainingCost", 5),
    "seconds as text": put("callbacks/TrainingCost", {"seconds": "x"}),
    "timings as text": put("callbacks/TrainingCost", {"seconds": 1.0, "update_times": ["x"] * 3}),
    "timings below 0": put("callbacks/TrainingCost", {"seconds": 1.0, "step_times": [1.0, -1.0, 1.0]}),
    "what was watched": put("callbacks/StallWarning", {"trend": {"window": "x"}}),
    "the best as text": put("callbacks/CheckpointCallback/best_wer", "x"),
    "counts below 0": put("guard", {"skipped_updates": -1, "consecutive_skips": 0, "too_short": 0}),
    "a count in digits": put("guard", {"skipped_updates": "9", "consecutive_skips": 0, "too_short": 0}),
    "no lowest error rate": change_state("CheckpointCallback", "best_wer", float("nan")),
    "a best update below 0": change_state("CheckpointCallback", "best_update", -5),
    "steps that are no number": change_steps(float("nan")),
    "steps below 0": change_steps(-3),
    "moments that are no numbers": fill_moments("exp_avg", float("nan")),
    "moments without end": fill_moments("exp_avg_sq", float("inf")),
    "counts as text": put("guard", {"skipped_updates": "x", "consecutive_skips": 0, "too_short": 0}),
    "counts a list": put("guard", [1]),
    "a clock that is none": put("nominal_audio", {}),
    "a weight is missing": without_averages(drop(WEIGHT)),
}


@pytest.mark.parametrize("change", RESUMED.values(), ids=RESUMED)
def test_a_run_is_not_resumed_with_malformed_states(small_run, tmp_path, change):
    run_dir = small_run.interrupted(tmp_path / "run")
    path = update_file(run_dir / "checkpoints", 3)
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)
    ended = small_run.run("train", f"resume={run_dir}")
    assert ended.code == 2, ended.printed
    assert str(path) in ended.last_line
    assert "does not fit the run that it is in" in ended.last_line
    assert "Traceback" not in ended.printed
    assert not (run_dir / "report").exists()


RATES = {"no rate": [], "a rate as text": ["x"], "two rates": [0.1, 0.2], "no number": [float("inf")], "a number": 0.1}


@pytest.mark.parametrize("rates", RATES.values(), ids=RATES)
def test_a_schedule_of_torch_takes_only_what_it_would_have_itself(rates):
    schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]), 3)
    good = schedule.state_dict()
    check_schedule({**good, "last_epoch": 7}, good)
    with pytest.raises(ValueError, match="the schedule's _last_lr is"):
        check_schedule({**good, "_last_lr": rates}, good)


def transposed(value: torch.Tensor) -> torch.Tensor:
    return value.transpose(0, -1).contiguous().transpose(0, -1)


@pytest.mark.parametrize("optimizer", ["torch_adamw", "adamw", "muon", "eve", "schedule_free_adamw"])
def test_the_order_of_moments_in_memory_changes_nothing(small_run, tmp_path, optimizer):
    word = f"optimizer={optimizer}"
    assert small_run.run("train", *TINY, word, f"run_dir={tmp_path / 'run'}").code == 0
    whole = replace(small_run, run_dir=tmp_path / "run")
    weights = []
    for name in ("same", "other"):
        run_dir = whole.interrupted(tmp_path / name)
        path = update_file(run_dir / "checkpoints", 3)
        state = torch.load(path, weights_only=True)
        for moments in state["optimizer_states"][0]["state"].values() if name == "other" else ():
            moments |= {key: transposed(value) for key, value in moments.items() if getattr(value, "ndim", 0) > 1}
        torch.save(state, path)
        ended = small_run.run("train", f"resume={run_dir}")
        assert ended.code == 0, ended.printed
        weights.append(torch.load(update_file(run_dir / "checkpoints", 6), weights_only=True)["state_dict"])
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_an_unchanged_run_is_resumed(small_run, tmp_path):
    ended = small_run.run("train", f"resume={small_run.interrupted(tmp_path / 'run')}")
    assert ended.code == 0, ended.printed
    assert (tmp_path / "run" / "report" / "summary.json").is_file()


def test_a_pipe_in_the_place_of_a_checkpoint_is_not_waited_for(small_run, tmp_path):
    os.mkfifo(tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match="is not a regular file"):
        load_checkpoint(tmp_path / "a.ckpt")
    ended = evaluate(small_run, tmp_path / "a.ckpt")
    assert (ended.code, "is neither a checkpoint nor a run folder" in ended.last_line) == (2, True)


def test_averages_of_a_checkpoint_beside_it_are_checked_too(small_run, tmp_path):
    run_dir = small_run.copy(tmp_path / "run")
    path = update_file(run_dir / "checkpoints", 3)
    state = torch.load(path, weights_only=True)
    state["averages"]["sum"] = {}
    torch.save(state, path)
    point_link(run_dir / "checkpoints" / "last.ckpt", update_file(run_dir / "checkpoints", 6))
    newest = load_checkpoint(run_dir / "checkpoints" / "last.ckpt")
    with pytest.raises(ValueError, match=r"update-000003\.ckpt is not a checkpoint"):
        choose_weights(newest, "average", 3)
