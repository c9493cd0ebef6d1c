import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from lhotse.features.io import NumpyFilesReader

from asr.cli import evaluate, prepare, train, transcribe
from asr.data.corpus import Corpus
from asr.data.cuts import SourceCheck, supervised_cuts
from asr.data.features import StoredFeatures
from asr.recipes.an4.prepare import choose_dev, prepare_an4
from asr.recipes.an4.sources import read_mfc
from tests.cli.conftest import TINY

SPEAKERS = {"train": ("fash", "fbbh", "mjwl", "mrcb", "mtcv"), "test": ("fcaw", "mmxg")}
TEXTS = ("yes", "u m n y h six", "rubout g m", "october twenty four", "enter seven")
SMALL = {"num_dev_speakers": 2}


def write_source(folder: Path, seed: int = 0) -> Path:
    """Write a small corpus in the recipe's own form; return its folder."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    lines, end = ["id\tspeaker\ttext\tsplit\tstart\tend"], 0
    for split, speakers in SPEAKERS.items():
        for speaker in speakers:
            for number, text in enumerate(TEXTS):
                start, end = end, end + int(rng.integers(120, 160))
                lines.append(f"an{number}-{speaker}-b\t{speaker}\t{text}\t{split}\t{start}\t{end}")
    (folder / "index.tsv").write_text("\n".join(lines) + "\n")
    np.savez_compressed(folder / "mfcc13.f16.npz", mfcc=rng.normal(size=(end, 13)).astype(np.float16))
    return folder


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("an4")
    write_source(folder / "an4_feats")
    return Path(shutil.make_archive(str(folder / "an4_feats"), "tar", folder, "an4_feats"))


def content(corpus: Corpus) -> dict[str, dict[str, tuple]]:
    """Return what every utterance holds, by split."""
    return {
        split: {
            segment.id: (segment.text, segment.speaker, segment.duration, matrix(manifests.sources()[segment.id]))
            for segment in manifests.supervisions
        }
        for split, manifests in corpus.splits.items()
    }


def matrix(features) -> list[list[float]]:
    return NumpyFilesReader(features.storage_path).read(features.storage_key).astype(np.float32).tolist()


def speakers(corpus: Corpus) -> dict[str, set[str]]:
    return {split: {s.speaker for s in manifests.supervisions} for split, manifests in corpus.splits.items()}


def test_the_official_test_set_is_kept_and_dev_is_training_speakers(archive, tmp_path):
    corpus = prepare_an4(tmp_path, source=str(archive), **SMALL)
    found = speakers(corpus)
    assert found["test"] == set(SPEAKERS["test"])
    assert found["train"] | found["dev"] == set(SPEAKERS["train"])
    assert len(found["dev"]) == 2
    assert not found["train"] & found["dev"]
    assert {split: len(utterances) for split, utterances in content(corpus).items()} == {
        "train": 15,
        "dev": 10,
        "test": 10,
    }


def test_every_utterance_has_its_own_frames(archive, tmp_path):
    source = write_source(tmp_path / "source")
    with np.load(source / "mfcc13.f16.npz") as arrays:
        cepstra = arrays["mfcc"]
    found = {
        name: utterance
        for utterances in content(prepare_an4(tmp_path / "out", source=str(archive), **SMALL)).values()
        for name, utterance in utterances.items()
    }
    for line in (source / "index.tsv").read_text().splitlines()[1:]:
        name, speaker, text, _, start, end = line.split("\t")
        frames = cepstra[int(start) : int(end)].astype(np.float32)
        assert found[name] == (text, speaker, len(frames) / 100, frames.tolist())


def as_cmu_has_it(source: Path, folder: Path, order: str) -> Path:
    """Write the form of the original: lists, transcripts, and a file of cepstra per utterance."""
    (folder / "etc").mkdir(parents=True)
    with np.load(source / "mfcc13.f16.npz") as arrays:
        cepstra = arrays["mfcc"]
    names, texts = {"train": [], "test": []}, {"train": [], "test": []}
    for line in (source / "index.tsv").read_text().splitlines()[1:]:
        name, speaker, text, split, start, end = line.split("\t")
        file = Path("an4_clstk" if split == "train" else "an4test_clstk", speaker, name)
        frames = cepstra[int(start) : int(end)]
        path = folder / "feat" / f"{file}.mfc"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(np.array(frames.size, f"{order}i4").tobytes() + frames.astype(f"{order}f4").tobytes())
        names[split].append(str(file))
        texts[split].append(f"<s> {text.upper()} </s> ({name})" if split == "train" else f"{text.upper()} ({name})")
    for split in names:
        (folder / "etc" / f"an4_{split}.fileids").write_text("\n".join(names[split]) + "\n")
        (folder / "etc" / f"an4_{split}.transcription").write_text("\n".join(texts[split]) + "\n")
    return folder


@pytest.mark.parametrize("order", [">", "<"])
def test_every_form_of_the_source_gives_the_same_utterances(archive, tmp_path, order):
    expected = content(prepare_an4(tmp_path / "a", source=str(archive), **SMALL))
    source = write_source(tmp_path / "source")
    assert content(prepare_an4(tmp_path / "b", source=str(source), **SMALL)) == expected
    original = as_cmu_has_it(source, tmp_path / "original", order)
    assert content(prepare_an4(tmp_path / "c", source=str(original), **SMALL)) == expected
    zipped = shutil.make_archive(str(tmp_path / "original"), "zip", tmp_path, "original")
    assert content(prepare_an4(tmp_path / "d", source=zipped, **SMALL)) == expected


def test_preparing_again_gives_the_same_and_mends_what_was_half_written(archive, tmp_path):
    first = content(prepare_an4(tmp_path, source=str(archive), **SMALL))
    files = sorted(tmp_path.glob("features/**/*.npy"))
    files[0].write_bytes(b"half")
    files[1].unlink()
    assert content(prepare_an4(tmp_path, source=str(archive), **SMALL)) == first


def test_dev_speakers_depend_on_the_seed_alone():
    names = {f"speaker{index}" for index in range(20)}
    assert choose_dev(names, 3, seed=1) == choose_dev(set(names), 3, seed=1)
    assert choose_dev(names, 3, seed=1) < choose_dev(names, 5, seed=1)
    assert choose_dev(names, 3, seed=1) != choose_dev(names, 3, seed=2)
    for impossible in (0, 20):
        with pytest.raises(ValueError, match=rf"num_dev_speakers must be in \[1, 19\].*given {impossible}"):
            choose_dev(names, impossible, seed=1)


def test_notes_say_who_is_dev_and_what_is_missing(archive, tmp_path):
    corpus = prepare_an4(tmp_path, source=str(archive), **SMALL)
    assert any(all(name in note for name in speakers(corpus)["dev"]) for note in corpus.notes)
    assert any("25 utterances of train instead of AN4's 948" in note for note in corpus.notes)
    assert any("10 utterances of test instead of AN4's 130" in note for note in corpus.notes)


def index(*change: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        file = folder / "index.tsv"
        assert change[0] in file.read_text()
        file.write_text(file.read_text().replace(*change))

    return apply


def cepstra(**arrays) -> Callable[[Path], None]:
    return lambda folder: np.savez(folder / "mfcc13.f16.npz", **arrays)


def broken(name: str, keep: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep])


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def start_of(number: int) -> str:
    """Return where an utterance of the small corpus begins, as written in its index."""
    rng = np.random.default_rng(0)
    return str(sum(int(rng.integers(120, 160)) for _ in range(number)))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without("mfcc13.f16.npz"), r"mfcc13\.f16\.npz is missing"),
        (without("index.tsv"), r"cepstra of AN4 are not there; expected index\.tsv beside mfcc13\.f16\.npz"),
        (broken("mfcc13.f16.npz", 3000), "cannot be read as an npz"),
        (broken("mfcc13.f16.npz", 0), "cannot be read as an npz"),
        (cepstra(other=np.zeros((9, 13))), "cannot be read as an npz with an array 'mfcc'"),
        (cepstra(mfcc=np.array([{}], dtype=object)), "cannot be read as an npz"),
        (cepstra(mfcc=np.zeros((9000, 12), np.float16)), r"float16 of shape \(9000, 12\), expected .* 13"),
        (cepstra(mfcc=np.zeros(9000)), r"shape \(9000,\)"),
        (cepstra(mfcc=np.zeros((9000, 13), np.int16)), "int16 of shape"),
        (cepstra(mfcc=np.zeros((100, 13))), "line 2: frames 0 to .* of an0-fash-b are not among the 100"),
        (index("id\tspeaker", "name\tspeaker"), "header lacks id"),
        (index("train\t0\t", "train\t-1\t"), "line 2: frames -1 to"),
        (index("train\t0\t", "train\t999\t"), "line 2: frames 999 to"),
        (index("train\t0\t", "train\tzero\t"), "line 2: .* does not describe an utterance"),
        (index(f"train\t{start_of(1)}\t", "train\t5\t"), "an0-fash-b and an1-fash-b share frames"),
        (index("an1-fash-b", "an0-fash-b"), "utterance an0-fash-b is there twice"),
        (index("an1-fash-b", "../an1"), "line 3: .* does not describe an utterance"),
        (index("\ttest\t", "\teval\t"), "does not describe an utterance; splits are train, test"),
        (index("\tfash\t", "\t\t"), "line 2: .* does not describe an utterance"),
        (index("\tyes\t", "\t\t"), "line 2: .* does not describe an utterance"),
        (index("\tfcaw\t", "\tfash\t"), r"speakers \['fash'\] are in train and in test"),
        (index("\ttest\t", "\ttrain\t"), "no utterances of test"),
    ],
)
def test_a_source_that_contradicts_itself_is_refused(tmp_path, spoil, message):
    folder = write_source(tmp_path / "source")
    spoil(folder)
    with pytest.raises(ValueError, match=message):
        prepare_an4(tmp_path / "out", source=str(folder), **SMALL)
    assert not list(tmp_path.rglob("*.npy"))


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-4])


def longer_than_told(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0" * 52)


def of_other_width(file: Path) -> None:
    file.write_bytes(np.array(24, "<i4").tobytes() + bytes(96))


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("spoil", [cut_short, longer_than_told, of_other_width, empty])
def test_cepstra_of_another_length_than_told_are_refused(tmp_path, spoil):
    file = tmp_path / "a.mfc"
    file.write_bytes(np.array(26, ">i4").tobytes() + np.arange(26, dtype=">f4").tobytes())
    assert read_mfc(file).tolist() == np.arange(26.0).reshape(2, 13).tolist()
    spoil(file)
    with pytest.raises(ValueError, match="no cepstra of Sphinx"):
        read_mfc(file)


def test_an_original_with_holes_is_refused(tmp_path):
    folder = as_cmu_has_it(write_source(tmp_path / "source"), tmp_path / "original", "<")
    transcripts = folder / "etc" / "an4_test.transcription"
    (folder / "feat" / "an4_clstk" / "fash" / "an0-fash-b.mfc").unlink()
    with pytest.raises(ValueError, match=r"an0-fash-b\.mfc is missing"):
        prepare_an4(tmp_path / "out", source=str(folder), **SMALL)
    shutil.rmtree(folder / "feat" / "an4_clstk")
    (folder / "etc" / "an4_train.fileids").write_text("")
    transcripts.write_text(transcripts.read_text().replace("(an0-fcaw-b)", "(an9-fcaw-b)"))
    with pytest.raises(ValueError, match=r"fcaw/an0-fcaw-b has no line in an4_test\.transcription"):
        prepare_an4(tmp_path / "out", source=str(folder), **SMALL)
    transcripts.write_text("YES an0-fcaw-b\n")
    with pytest.raises(ValueError, match="'YES an0-fcaw-b' is no transcript"):
        prepare_an4(tmp_path / "out", source=str(folder), **SMALL)
    transcripts.unlink()
    with pytest.raises(ValueError, match=r"an4_test\.transcription is missing"):
        prepare_an4(tmp_path / "out", source=str(folder), **SMALL)


def test_an_archive_that_leads_out_of_its_folder_is_refused(tmp_path):
    write_source(tmp_path / "source")
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        tar.add(tmp_path / "source" / "index.tsv", "../index.tsv")
    with pytest.raises(ValueError, match="leads out of the folder"):
        prepare_an4(tmp_path / "out", source=str(tmp_path / "evil.tar"), **SMALL)


RECIPE = ("recipe=an4/transformer_ctc", "logger=none")


def said(monkeypatch, capsys, folder: Path, command, *words: str) -> str:
    """Return what a command says when it refuses, in this process."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["asr", *words])
    with pytest.raises(SystemExit) as left:
        command.main()
    assert left.value.code == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "recipe an4 needs data.source=PATH: an archive or folder of AN4's cepstra"),
        (("augment=speed_specaugment",), "augment.audio changes the audio, but features are stored"),
        (("features=log_mel",), "features=log_mel is computed from audio, but there are features alone, 13 per frame"),
        (("data.num_features=12",), "the stored features are 13 per frame every 10 ms, but data.num_features=12"),
        (("data.prepare.num_dev_speakers=5",), "num_dev_speakers must be in [1, 4]"),
    ],
)
def test_what_cannot_work_is_refused_before_work_starts(monkeypatch, capsys, archive, tmp_path, words, message):
    source = [f"data.source={archive}"] if words else []
    options = [] if any("num_dev_speakers" in word for word in words) else ["data.prepare.num_dev_speakers=2"]
    command = prepare if words != ("augment=speed_specaugment",) else train
    assert message in said(monkeypatch, capsys, tmp_path, command, *RECIPE, *source, *options, *words)
    assert not (tmp_path / "runs").exists()


@pytest.fixture(scope="module")
def trained(archive, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    model = [word for word in TINY if not word.startswith("data.prepare")]
    source = (f"data.source={archive}", "data.prepare.num_dev_speakers=2", "run_dir=run")
    short = ("trainer.max_steps=4", "trainer.val_check_interval=4", "data.workers.num_workers=0")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.argv", ["asr", *RECIPE, *model, *short, *source])
        train.main()
    return folder


def test_a_training_ends_with_an_error_rate_that_evaluating_finds_again(monkeypatch, capsys, trained):
    monkeypatch.chdir(trained)
    monkeypatch.setattr("sys.argv", ["asr", "run=run", "output_dir=again", "torch_threads=1"])
    evaluate.main()
    for name in ("test.hyp.txt", "test.wer.txt"):
        assert (trained / "again" / name).read_text() == (trained / "run" / "decode" / name).read_text()
    assert len((trained / "again" / "test.hyp.txt").read_text().splitlines()) == 10


def test_who_was_trained_on_features_cannot_transcribe_audio(monkeypatch, capsys, trained):
    (trained / "a.wav").write_bytes(b"")
    message = said(monkeypatch, capsys, trained, transcribe, "run=run", "audio=a.wav", "torch_threads=1")
    assert "trained on features that its corpus brought, 13 per frame, and cannot hear audio" in message


def test_the_real_corpus_is_whole_and_nothing_of_it_is_dropped(shared_data, tmp_path):
    corpus = prepare_an4(tmp_path, source=str(shared_data / "an4_feats.tar"))
    assert {split: len(m.supervisions) for split, m in corpus.splits.items()} == {"train": 844, "dev": 104, "test": 130}
    assert {split: len(names) for split, names in speakers(corpus).items()} == {"train": 66, "dev": 8, "test": 10}
    assert not any("instead of" in note for note in corpus.notes)
    check = SourceCheck(StoredFeatures(13))
    for manifests in corpus.splits.values():
        assert {check(cut) for cut in supervised_cuts(manifests)} == {None}
