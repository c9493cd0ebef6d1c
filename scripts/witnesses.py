"""What a user can see of this program: recorded before a change, and compared after it.

    python scripts/witnesses.py record FOLDER [--tree TREE] [--data PATH] [--only NAME,NAME]
    python scripts/witnesses.py compare OLD NEW

record: runs the commands of a tree in a temporary folder, one at a time with ``torch_threads=1``, and writes a file for
each witness: digests of weights after 40 updates, error rates, texts. compare: prints what differs.
Everything is trained for 40 updates; only texts of streams, exports and the like need models that say something: a
small transformer and a causal Zipformer that learn single digits in 160 and 100 updates.
``tests/optim`` holds the trajectories of optimizers.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lhotse
import numpy as np
import sentencepiece
import soundfile
import torch
import yaml
from bench.deploy import sherpa
from bench.runs import last_checkpoint
from safetensors.torch import load_file

ROOT = Path(__file__).parents[1]

FORTY = (
    *("data.workers.num_workers=0", "trainer.max_steps=40", "trainer.val_check_interval=20", "torch_threads=1"),
    *("logger=csv", "data.num_jobs=1", "data.batch.max_duration_s=10"),
)
TINY = ("encoder.num_layers=2", "encoder.d_model=64", "encoder.d_feedforward=128", "encoder.subsampling_channels=16")
DIGITS = ("data.prepare.num_train=160", "data.prepare.num_dev=10", "data.prepare.num_test=20")
CAUSAL = ("encoder.causal=true", "encoder.chunk_size=[32]", "encoder.left_context_frames=[128]", "head=transducer_ctc")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PIECES = 24  # of the tokenizer of the converted model
ICEFALL = ((r"embed\.conv1", "embed.conv.0"), (r"embed\.conv2", "embed.conv.4"), (r"embed\.conv3", "embed.conv.7"))
UNSTABLE = re.compile("second|minute|time|date|memory|path|folder|cost|commit|machine|version|command|cpu|python|bytes")
EXPORTS = {  # the run and the options
    "ctc": ("spoken", ("quantize=int8",)),
    "torch": ("spoken", ("format=torch",)),
    "safetensors": ("spoken", ("format=safetensors",)),
    "transducer": ("causal", ("quantize=int8",)),
    "streaming_ctc": ("causal", ("quantize=int8", "streaming=true", "model_type=ctc")),
    "streaming_transducer": ("causal", ("quantize=int8", "streaming=true")),
}
Found = dict[str, Any]


def digest(*contents: bytes | str) -> str:
    """Return a short checksum."""
    parts = (content.encode() if isinstance(content, str) else content for content in contents)
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def digest_of_weights(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a checksum of tensors in the order of their names."""
    in_order = [tensors[name].contiguous() for name in sorted(tensors)]
    return digest(
        *(f"{t.dtype}{tuple(t.shape)}".encode() + t.view(-1).view(torch.uint8).numpy().tobytes() for t in in_order)
    )


class Witnesses:
    """What each method without an underscore returns is a witness.

    Args:
        folder: where the commands run; it is empty.
        tree: a checkout.
        data: folder with tars of real speech.
    """

    def __init__(self, folder: Path, tree: Path, data: Path) -> None:
        self._folder, self._tree, self._data = folder, tree, data
        alone = {"OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "COLUMNS": "200", "PYTHONPATH": str(tree)}
        self._environment = {**os.environ, **alone}
        self._fsdd = (f"data.source={data}/fsdd_flac.tar", "data.prepare.connected=false", "augment=none")

    def _start(self, command: str, *words: str) -> subprocess.Popen[str]:
        streams: Found = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        place: Found = {"cwd": self._folder, "env": self._environment, "start_new_session": True}
        program = [sys.executable, "-m", "asr.commands", command, *words]
        return subprocess.Popen(program, text=True, **streams, **place)

    def _run(self, command: str, *words: str) -> str:
        """Return what a command prints; RuntimeError if it fails."""
        process = self._start(command, *words)
        printed, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"asr-{command} {' '.join(words)}\n{printed}")
        return printed.replace(str(self._folder), "HERE")

    def _train(self, name: str, recipe: str, *given: str) -> Found:
        words = _last_of_each(*FORTY, *given)
        self._run("train", f"recipe={recipe}", f"run_dir={name}", *words)
        return self._seen(name)

    def _seen(self, name: str) -> Found:
        """Return digests of a run's weights and losses, and what it says of its test sets."""
        run = self._folder / name
        losses = [line for line in (run / "metrics.csv").read_text().splitlines() if "train/loss" in line]
        seen = {
            "weights": digest_of_weights(last_checkpoint(run)["state_dict"]),
            "losses": digest(*losses),
            "last loss": losses[-1],
        }
        return {**seen, **self._decoded(run / "decode")}

    def _decoded(self, folder: Path) -> Found:
        """Return the first line of each result below a folder, and its texts."""
        found: Found = {}
        for file in sorted(folder.rglob("*.wer.txt")):
            name = file.relative_to(folder).as_posix().removesuffix(".wer.txt")
            found[name] = {
                "wer": file.read_text().splitlines()[0],
                "texts": digest((folder / f"{name}.hyp.txt").read_text()),
            }
        return found

    def _unpacked(self, name: str) -> Path:
        if not (self._folder / name).exists():
            with tarfile.open(self._data / f"{name}.tar") as tar:
                tar.extractall(self._folder, filter="data")
        return self._folder / name

    @functools.cached_property
    def _spoken(self) -> Found:
        """A run that has learned a little of single digits; beside it 20 test utterances, alone, listed and joined."""
        rows = [line.split("\t") for line in (self._unpacked("fsdd_flac") / "index.tsv").read_text().splitlines()]
        table, joined, rate_hz = ["audio\ttext"], [], 8000
        long_enough = [row for row in rows if row[-1] == "test" and int(row[2]) - int(row[1]) > rate_hz // 2]
        for number, row in enumerate(long_enough[:: len(long_enough) // 20][:20]):
            samples, _ = soundfile.read(f"{self._folder}/fsdd_flac/{row[0]}", start=int(row[1]), stop=int(row[2]))
            soundfile.write(self._folder / f"{number:02}.flac", samples, rate_hz)
            table.append(f"{number:02}.flac\t{row[5]}")
            joined += [samples, np.random.default_rng(number).normal(size=rate_hz // 2) * 1e-4]
        soundfile.write(self._folder / "long.flac", np.concatenate(joined), rate_hz)
        (self._folder / "twenty.tsv").write_text("\n".join(table) + "\n")
        words = ("encoder=transformer_xxs", *TINY, *self._fsdd, "optimizer=muon", "optimizer.lr=5e-3")
        return self._train("spoken", "fsdd/transformer_ctc", *words, "trainer.max_steps=160")

    @functools.cached_property
    def _causal(self) -> Found:
        """A causal Zipformer with a transducer and CTC that has learned a little of the same."""
        words = (*self._fsdd, *CAUSAL, "decoder=transducer_greedy", "encoder.ref_duration_s=10")
        return self._train(
            "causal", "fsdd/zipformer_ctc", *words, "trainer.max_steps=100", "trainer.val_check_interval=100"
        )

    def digits(self) -> Found:
        """The default recipe; from shards; from stored features; killed and resumed; with two ranks."""
        words, shards = ("digits/transformer_ctc", *DIGITS), ("data.storage=shar", "data.storage.dir=tars")
        found = {
            "from files": self._train("digits", *words),
            "from shards": self._train("shards", *words, *shards),
            "from features": self._train("features", *words, "features=log_mel_precomputed"),
            "two ranks": self._train("ranks", *words, "trainer.devices=2"),
        }
        process = self._start("train", f"recipe={words[0]}", "run_dir=killed", *DIGITS, *FORTY)
        while not any((self._folder / "killed" / "checkpoints").glob("update-*20.ckpt")) and process.poll() is None:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return found | {"resumed": "resuming" in self._run("train", "resume=killed"), "killed": self._seen("killed")}

    def zipformer(self) -> Found:
        """Causal, with a transducer and CTC."""
        words = (*DIGITS, *CAUSAL, "decoder=transducer_greedy")
        return self._train("zipformer", "digits/zipformer_ctc", *words, "data.batch.max_duration_s=6")

    def an4_features(self) -> Found:
        """Recipe custom on features without audio."""
        source = self._unpacked("an4_feats")
        frames, folder = np.load(source / "mfcc13.f16.npz")["mfcc"], self._folder / "an4"
        rows = [line.split("\t") for line in (source / "index.tsv").read_text().splitlines()[1:]]
        for split, taken in (("train", slice(0, 160)), ("test", slice(0, 20))):
            features, supervisions = [], []
            with lhotse.NumpyFilesWriter(folder / f"arrays_{split}") as writer:
                for name, speaker, text, _, start, end in [row for row in rows if row[3] == split][taken]:
                    part = frames[int(start) : int(end)]
                    stored: Found = {"storage_type": writer.name, "storage_path": str(writer.storage_path)}
                    stored |= {"storage_key": writer.write(name, part), "num_frames": len(part), "num_features": 13}
                    stored |= {"type": "mfcc", "frame_shift": 0.01, "sampling_rate": 16000, "recording_id": name}
                    features.append(lhotse.Features(**stored, start=0.0, duration=len(part) / 100, channels=0))
                    about: Found = {"text": text, "speaker": speaker}
                    supervisions.append(lhotse.SupervisionSegment(name, name, 0.0, len(part) / 100, **about))
            lhotse.FeatureSet.from_features(features).to_file(folder / f"features_{split}.jsonl.gz")
            lhotse.SupervisionSet.from_segments(supervisions).to_file(folder / f"supervisions_{split}.jsonl.gz")
        return self._train("an4_run", "custom/transformer_ctc", *TINY, "data.source=an4")

    def prompts(self) -> Found:
        """Recipe custom on telephone prompts, with a language model of their transcripts, and hotwords."""
        rows = [
            line.split("\t") for line in (self._unpacked("asterisk_en") / "transcripts.tsv").read_text().splitlines()
        ]
        table = ["audio\ttext", *(f"asterisk_en/{path}\t{text}" for path, _, text, _ in rows[:160])]
        (self._folder / "prompts.tsv").write_text("\n".join(table) + "\n")
        found = self._train("prompts", "custom/transformer_ctc", *TINY, "data.source=prompts.tsv")
        (self._folder / "hotwords.txt").write_text("agent\t2\nplease enter\nextension\n")
        words = ("run=prompts", "decoder=ctc_beam", "decoder.hotwords=hotwords.txt", "output_dir=hot", "num_workers=0")
        self._run("evaluate", *words, "torch_threads=1")
        return found | {"hotwords": self._decoded(self._folder / "hot")}

    def language_model(self) -> Found:
        """An n-gram model, tuned on dev, with hotwords."""
        self._spoken  # noqa: B018
        (self._folder / "digits.txt").write_text("seven\nthree\t3\n")
        self._run("lm", "run=spoken", "transcripts=true", "order=3", "output=spoken.arpa")
        words = (
            "decoder=ctc_beam",
            "decoder.lm=spoken.arpa",
            "decoder.hotwords=digits.txt",
            "tune=true",
            "num_workers=0",
        )
        printed = self._run("evaluate", "run=spoken", *words, "output_dir=fused", "torch_threads=1")
        arpa = (self._folder / "spoken.arpa").read_text()
        grid = [line for line in printed.splitlines() if re.match(r"[\s\d.│|-]+$", line)]
        return {"arpa": digest(arpa), "grid": grid, **self._decoded(self._folder / "fused")}

    def mixture(self) -> Found:
        """Two corpora by weight, with noise."""
        made = "prepare: {num_train: 60, num_dev: 8, num_test: 8}, weight: 1"
        real = f"{{recipe: fsdd/transformer_ctc, source: {self._data}/fsdd_flac.tar, {made}}}"
        words = (*TINY, f"data.sources=[{real}, {{recipe: digits/transformer_ctc, {made}}}]", "augment=noise")
        noise = f"augment.audio.noise.folder={self._unpacked('esc10_noise70')}/ogg"
        return self._train("mixture", "fsdd/transformer_ctc", *words, noise)

    def converted(self) -> Found:
        """A model with icefall's names, of an encoder that has learned and random heads: decoded, and started from."""
        self._causal  # noqa: B018
        draw, theirs = torch.Generator().manual_seed(0), dict[str, torch.Tensor]()
        for name, tensor in last_checkpoint(self._folder / "causal")["state_dict"].items():
            _, found, name = name.partition("encoder.")
            if found and not name.endswith(".probability"):
                for pattern, put in ICEFALL:
                    name = re.sub(pattern, put, name)
                name = name if "embed." in name else "encoder." + re.sub("logits$", "bias", name)
                theirs[name] = tensor
        shapes: dict[str, tuple[int, int]] = {
            **{"ctc_output.1": (PIECES, 128), "joiner.encoder_proj": (24, 128), "joiner.decoder_proj": (24, 16)},
            **{"joiner.output_linear": (PIECES, 24), "simple_am_proj": (PIECES, 128), "simple_lm_proj": (PIECES, 16)},
        }
        for name, shape in shapes.items():
            theirs |= {f"{name}.weight": torch.randn(shape, generator=draw), f"{name}.bias": torch.zeros(shape[0])}
        theirs["decoder.embedding.weight"] = torch.randn(PIECES, 16, generator=draw)
        theirs["decoder.conv.weight"] = torch.randn(16, 4, 2, generator=draw)
        torch.save({"model": theirs}, self._folder / "pretrained.pt")
        model, marks = io.BytesIO(), ["<blk>", "<sos/eos>"]
        ids: Found = {"unk_id": 2, "bos_id": -1, "eos_id": -1, "user_defined_symbols": marks, "vocab_size": PIECES}
        texts = iter([f"{a} {b}" for a in NUMBERS for b in NUMBERS])
        trainer = sentencepiece.SentencePieceTrainer
        trainer.train(sentence_iterator=texts, model_writer=model, model_type="bpe", minloglevel=2, **ids)
        (self._folder / "bpe.model").write_bytes(model.getvalue())
        sizes = ("encoder=zipformer_xs", *CAUSAL, "head.predictor_dim=16", "head.joiner_dim=24")
        files = ("model=pretrained.pt", "bpe_model=bpe.model", "output=ours.ckpt")
        self._run("convert", *files, *sizes, "data.sampling_rate_hz=8000", "data.text.case=lower")
        words = ("manifest=twenty.tsv", "output_dir=by_ours", "num_workers=0", "torch_threads=1")
        self._spoken  # noqa: B018
        self._run("evaluate", "run=ours.ckpt", *words)
        started = ("init=ours.ckpt", *self._fsdd, *CAUSAL, "decoder=transducer_greedy", "data.batch.max_duration_s=6")
        return {
            "streams": self._run("stream", "run=ours.ckpt", "audio=long.flac").splitlines()[:-1],
            "decodes": (self._folder / "by_ours" / "twenty.hyp.txt").read_text().splitlines(),
            "starts": self._train("started", "fsdd/zipformer_ctc", *started),
        }

    def sweeps(self) -> Found:
        """Two systems with two seeds each, twice."""
        found: Found = {}
        chosen = (
            "recipe=fsdd/transformer_ctc",
            "encoder=transformer_xxs",
            "optimizer.lr=5e-3",
            "sweep.target_wer=0.97",
        )
        words = _last_of_each(*FORTY, *TINY, *self._fsdd, "trainer.max_steps=120", *chosen)
        for name, swept in (("optimizers", "optimizer=muon,nor_muon"), ("dropout", "encoder.dropout=0.0,0.3")):
            words = (*words, "optimizer=muon") if name == "dropout" else words
            self._run("train", "-m", f"sweep.name={name}", swept, "seed=1,2", *words)
            self._run("compare", f"sweep={name}", f"out={name}")
            found[name] = _stable(json.loads((self._folder / name / "comparison.json").read_text()))
        return found

    def recipes(self) -> Found:
        """The composed config of every recipe, as it differs from the first one's."""
        found: Found = {}
        for file in sorted((self._tree / "recipes").glob("*/*.yaml")):
            name = f"{file.parent.name}/{file.stem}"
            found[name] = dict(flat(yaml.safe_load(self._run("train", f"recipe={name}", "--cfg", "job"))))
        first, *others = found
        for name in others:
            missing = {key: "(none)" for key in found[first] if key not in found[name]}
            found[name] = missing | {k: v for k, v in found[name].items() if found[first].get(k, "(none)") != v}
        return found

    def prepared(self) -> Found:
        """A miniature of every recipe's corpus: counts, and what each utterance is."""
        sys.path.insert(0, str(ROOT))
        miniatures, here = importlib.import_module("tests.recipes.miniatures"), self._folder
        words, mini = miniatures.spoken_words(self._data), "data.prepare.subsets=mini"
        small = ("data.prepare.num_train=24", "data.prepare.num_dev=4", "data.prepare.num_test=4")
        books = miniatures.write_librispeech(here / "books", words, miniatures.MINI_PARTS)
        options: dict[str, tuple[str, ...]] = {
            "aishell/zipformer_m_ctc": (f"data.source={miniatures.write_aishell(here / 'aishell', words)}",),
            "an4/transformer_ctc": (f"data.source={self._data}/an4_feats.tar",),
            "commonvoice/zipformer_m_ctc": (f"data.source={miniatures.write_commonvoice(here / 'voices', words)}",),
            "custom/transformer_ctc": (f"data.source={miniatures.write_table(here / 'table', words)}",),
            "digits/transformer_ctc": small,
            "fsdd/transformer_ctc": (f"data.source={self._data}/fsdd_flac.tar", *small),
            "librispeech/zipformer_m_ctc": (f"data.source={books}", mini),
            "phrases/transformer_ctc": small,
        }
        found: Found = {}
        for recipe, chosen in options.items():
            folder = f"prepared_{recipe.partition('/')[0]}"
            where = (f"data.dir={folder}", "data.num_jobs=1", "tokenizer=char")
            printed = self._run("prepare", f"recipe={recipe}", *where, "logger=csv", *chosen)
            found[recipe] = {"table": [" ".join(line.split()) for line in printed.splitlines() if " │ " in line]}
            for file in sorted((self._folder / folder).rglob("cuts_*.jsonl")):
                cuts = [json.loads(line) for line in file.read_text().splitlines()]
                told = [(c["id"], c["start"], c["duration"], c["supervisions"][0]["text"]) for c in cuts]
                found[recipe][file.stem] = {"first": told[0], "all": digest(json.dumps(told, ensure_ascii=False))}
            audio = [
                soundfile.read(file)[0].tobytes() for file in sorted((self._folder / folder).rglob("*-[0-9]*.flac"))
            ]
            found[recipe]["audio made"] = digest(*audio)
        return found

    def commands(self) -> Found:
        """What a long recording, a stream and known transcripts become."""
        found: Found = {"spoken": self._spoken, "causal": self._causal}
        one, long = "torch_threads=1", "audio=long.flac"
        self._run("transcribe", "run=spoken", long, "output_format=[srt,json,ctm,txt]", "output_dir=long", one)
        self._run("align", "run=spoken", "manifest=twenty.tsv", "output_dir=aligned", "num_workers=0", one)
        heard = self._run("stream", "run=causal", long, "endpoint_s=0.4").splitlines()
        files = [*sorted((self._folder / "long").glob("long.*")), *sorted((self._folder / "aligned").glob("twenty.*"))]
        return found | {"heard": heard[:-1], **{file.name: file.read_text().splitlines() for file in files}}

    def exports(self) -> Found:
        """Texts of 20 utterances by each kind of export, of 32 and 8 bits."""
        found: Found = {"spoken": self._spoken, "causal": self._causal}
        utterances = sorted(self._folder.glob("[0-9][0-9].flac"))
        for name, (run, options) in EXPORTS.items():
            self._run("export", f"run={run}", f"output=export_{name}", "test_wav=false", *options)
            folder = self._folder / f"export_{name}"
            if name == "safetensors":
                found[name] = digest_of_weights(load_file(folder / "model.safetensors"))
            elif name == "torch":
                found[name] = [_by_torchscript(folder, file) for file in utterances]
            else:
                for ending in (".onnx", ".int8.onnx"):
                    decode = sherpa(folder, ending, "streaming=true" in options, "transducer" in name, 8000, 80)
                    samples = [soundfile.read(file, dtype="float32")[0] for file in utterances]
                    found[name + ending] = [decode(np.append(audio, np.zeros(8000, np.float32))) for audio in samples]
        return found


def _last_of_each(*words: str) -> tuple[str, ...]:
    return tuple({word.partition("=")[0]: word for word in words}.values())


def _by_torchscript(folder: Path, file: Path) -> str:
    samples, rate_hz = soundfile.read(file, dtype="float32")
    fbank = lhotse.Fbank(lhotse.FbankConfig(sampling_rate=rate_hz, snip_edges=False, dither=0.0, num_filters=80))
    features = torch.from_numpy(fbank.extract(samples, rate_hz))[None]
    log_probs, _ = torch.jit.load(str(folder / "model.pt"))(features, torch.tensor([features.shape[1]]))
    tokens = [line.rpartition(" ")[0] for line in (folder / "tokens.txt").read_text().splitlines()]
    return "".join(tokens[n] for n in torch.unique_consecutive(log_probs[0].argmax(dim=-1)).tolist() if n)


def _stable(node: Any) -> Any:
    """Return what a program has written without times, places and machines."""
    if isinstance(node, dict):
        return {key: _stable(value) for key, value in node.items() if not UNSTABLE.search(key)}
    return [_stable(value) for value in node] if isinstance(node, list) else node


def flat(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of nested JSON with its path."""
    inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list | tuple) else None
    if not inside:
        yield path, node
    for key, value in inside or ():
        yield from flat(value, f"{path}.{key}" if path else str(key))


def record(folder: Path, tree: Path, data: Path, only: Sequence[str]) -> None:
    """Write a file for each witness."""
    folder.mkdir(parents=True, exist_ok=True)
    processor = re.search("model name.*: (.*)", Path("/proc/cpuinfo").read_text())
    made_with = {name: version(name) for name in ("torch", "lhotse", "numpy", "sherpa-onnx", "onnxruntime")}
    made_with["processor"] = processor[1] if processor else "unknown"
    with tempfile.TemporaryDirectory(prefix="witnesses-") as place:
        witnesses = Witnesses(Path(place), tree.resolve(), data.resolve())
        for name in only or [name for name in vars(Witnesses) if not name.startswith("_")]:
            start = os.times()
            try:
                found = getattr(witnesses, name)()
            except RuntimeError as error:
                found = {"failed": [line for line in str(error).splitlines() if line.startswith("asr-")]}
                print(error, file=sys.stderr)
            text = json.dumps({"made with": made_with, **found}, indent=1, ensure_ascii=False)
            (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
            spent = sum(os.times()[:4]) - sum(start[:4])
            print(f"{name}: {spent:.0f} CPU s", flush=True)


def compare(old: Path, new: Path) -> int:
    """Print what differs between two recordings; return 1 if anything does."""
    changed, machines = set[str](), set[str]()
    for name in sorted({file.name for folder in (old, new) for file in folder.glob("*.json")}):
        if missing := [str(folder) for folder in (old, new) if not (folder / name).exists()]:
            print(f"{name}: not in {missing[0]}")
            changed.add(name)
            continue
        was, now = (dict(flat(json.loads((folder / name).read_text(encoding="utf-8")))) for folder in (old, new))
        for key in sorted({*was, *now}):
            if was.get(key, "(none)") != now.get(key, "(none)"):
                print(f"{name}: {key}: {was.get(key, '(none)')} → {now.get(key, '(none)')}")
                (machines if key.startswith("made with") else changed).add(name)
    if machines:
        print(
            "other versions or another processor: digests of weights may differ, and texts of models as weak as these"
        )
    print(f"{len(changed)} witnesses differ: {', '.join(sorted(changed))}" if changed else "no witness differs")
    return int(bool(changed))


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording, comparing = commands.add_parser("record"), commands.add_parser("compare")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--tree", type=Path, default=ROOT)
    recording.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    recording.add_argument("--only", type=lambda names: names.split(","), default=())
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    options = parser.parse_args()
    if options.command == "compare":
        return compare(options.old, options.new)
    record(options.folder, options.tree, options.data, options.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
