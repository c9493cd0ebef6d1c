import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.data.manifests.audio_files import ENDINGS, MEDIA_ENDINGS, audio_files, find_audio, groups_of


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.wav", "a.wav", "[c].wav", "c.wav", "deep/ünlü 1.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        soundfile.write(tmp_path / name, np.ones(800) * 0.1, 8000)
    return tmp_path


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["b.wav", "a.wav"], ["b.wav", "a.wav"]),
        (["b.wav", "[ab].wav"], ["b.wav", "a.wav"]),
        (["[c].wav"], ["[c].wav"]),
        (["deep", "c.wav"], ["deep/ünlü 1.wav", "c.wav"]),
        (["."], ["[c].wav", "a.wav", "b.wav", "c.wav", "deep/ünlü 1.wav"]),
    ],
)
def test_patterns_name_each_file_once_in_order(folder, patterns, names):
    assert [str(path) for path in find_audio(patterns)] == names


def test_a_folder_holds_audio_at_any_depth_but_not_behind_links_or_hidden(folder):
    (folder / "deep" / "notes.txt").write_text("no audio")
    (folder / ".hidden").mkdir()
    for name in (".hidden/d.wav", ".d.wav", "deep/UPPER.FLAC"):
        soundfile.write(folder / name, np.ones(800) * 0.1, 8000)
    (folder / "deep" / "again").symlink_to(folder)
    assert [str(path) for path in find_audio(["deep"])] == ["deep/UPPER.FLAC", "deep/ünlü 1.wav"]
    assert set(find_audio(["."]).values()) == {Path()}
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match="'empty'"):
        find_audio(["empty"])


def test_long_files_are_cut_in_pauses_of_their_own_channel(folder):
    rate_hz = 8000
    tone = 0.3 * np.sin(np.arange(rate_hz) * 0.5)
    silence = np.zeros(rate_hz)
    first, second = np.concatenate([tone, silence, silence]), np.concatenate([silence, silence, tone])
    soundfile.write(folder / "two.wav", np.stack([first, second], axis=1), rate_hz)
    ((_, whole),), _ = audio_files([Path("two.wav")], max_s=3.0)
    assert [(cut.id, cut.channel, cut.start, cut.duration) for cut in whole] == [("two.wav//channel 1", 0, 0, 3)]
    ((_, parts),), _ = audio_files([Path("two.wav")], max_s=2.0, each_channel=True)
    assert [cut.channel for cut in parts] == [0, 1]
    assert [cut.start for cut in parts] == pytest.approx([0, 1.85], abs=0.03)
    assert [cut.end for cut in parts] == pytest.approx([1.15, 3], abs=0.03)


def test_of_a_good_mp3_no_errors_of_its_decoder_are_printed(folder, capfd):
    rng = np.random.default_rng(0)
    loudness = np.repeat(rng.choice([0.0, 0.001, 0.5], size=400), 1600)
    soundfile.write(folder / "long.mp3", loudness * rng.normal(size=len(loudness)) * 0.3, 16_000)
    ((_, cuts),), _ = audio_files([Path("long.mp3")], max_s=2.0)
    assert all(len(cut.load_audio()[0]) for cut in cuts)
    os.write(2, b"others are still printed")
    assert (len(cuts) > 10, capfd.readouterr().err) == (True, "others are still printed")


@pytest.mark.parametrize(("name", "codec", "rate_hz"), [("a.m4a", "aac", 16_000), ("a.webm", "libopus", 48_000)])
def test_audio_of_media_files_is_read_and_what_is_missing_of_it_is_said(folder, name, codec, rate_hz):
    av = pytest.importorskip("av")
    with av.open(name, "w") as media:
        stream = media.add_stream(codec, rate=rate_hz, layout="stereo")
        samples = np.stack([np.zeros(3 * rate_hz), np.sin(np.arange(3 * rate_hz) / 9)]) * 0.3
        frame = av.AudioFrame.from_ndarray(samples.astype(np.float32), format="fltp", layout="stereo")
        frame.sample_rate = rate_hz
        media.mux([packet for one in (frame, None) for packet in stream.encode(one)])
    content = Path(name).read_bytes()
    Path("playlist.m4a").write_text("#EXTM3U\n#EXTINF:1,\na.wav\n")
    Path("half.webm").write_bytes(content[: len(content) // 2])
    files = [Path(name), Path("half.webm"), Path("playlist.m4a")]
    ((path, cuts),), unread = audio_files(files, 5.0, each_channel=True, folder=folder)
    assert path == Path(name)
    assert len(list(groups_of([Path(name)] * 3, max_files=9, max_s=7.0))) == 2
    levels = [np.sqrt(np.mean(cut.load_audio() ** 2)) for cut in cuts]
    assert levels == pytest.approx([0.0, 0.3 / 2**0.5], abs=0.02)
    assert [path for path, _ in unread] == ["half.webm", "playlist.m4a"]


def test_without_pyav_media_files_are_named_with_what_reads_them(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    Path("a.mp4").write_bytes(b"some")
    files = find_audio(["."], (*ENDINGS, *MEDIA_ENDINGS))
    read, unread = audio_files([*files], 5.0, folder=folder)
    assert len(read) == 5
    assert [(path, "werdict[media]" in why) for path, why in unread] == [("a.mp4", True)]
    assert len(list(groups_of([*files], max_files=9, max_s=10.0))) == 1


def test_no_path_is_the_id_of_a_part_of_another_file(folder):
    rate_hz = 8000
    soundfile.write(folder / "two.wav", np.ones((3 * rate_hz, 2)) * 0.1, rate_hz)
    names = ["two.wav, channel 1", "two.wav, channel 2, 0.0 s", "two.wav"]
    for name in names[:2]:
        (folder / name).write_bytes((folder / "a.wav").read_bytes())
    for max_s in (2.0, 5.0):
        *others, (_, several) = audio_files([Path(name) for name in names], max_s, each_channel=True)[0]
        assert [cut.id for _, cuts in others for cut in cuts] == names[:2]
        assert all(str(Path(cut.id)) != cut.id for cut in several)
        assert len({cut.id for cut in several}) == len(several) >= 2


@pytest.mark.parametrize("pattern", ["/dev/zero", "nowhere.wav"])
def test_a_pattern_that_names_no_file_is_refused(folder, pattern):
    with pytest.raises(ValueError, match=re.escape(pattern)):
        find_audio(["a.wav", pattern])


def test_unreadable_files_are_listed_with_their_reason_and_the_others_are_cuts(folder):
    (folder / "text.wav").write_bytes(b"no audio at all")
    (folder / "empty.wav").write_bytes(b"")
    soundfile.write(folder / "nothing.wav", np.zeros(0), 8000)
    read, unreadable = audio_files([*find_audio(["*.wav", "deep/*"])], max_s=5.0)
    cuts = [cut for _, of_file in read for cut in of_file]
    assert [cut.id for cut in cuts] == ["[c].wav", "a.wav", "b.wav", "c.wav", "deep/ünlü 1.wav"]
    assert [cut.duration for cut in cuts] == [0.1] * 5
    reasons = dict(unreadable)
    assert set(reasons) == {"text.wav", "empty.wav", "nothing.wav"}
    assert "Format not recognised" in reasons["text.wav"]
    assert "empty audio" in reasons["nothing.wav"]


def test_files_are_taken_together_up_to_a_number_and_a_length(folder):
    for name, duration_s in (("1", 4), ("2", 5), ("3", 20), ("4", 2)):
        soundfile.write(folder / f"{name}.wav", np.zeros(duration_s * 1000), 1000)
    (folder / "5.wav").write_bytes(b"no audio at all")  # has no length, and is told of later
    files = [folder / f"{number}.wav" for number in range(1, 6)]
    by_length = [[file.stem for file in group] for group in groups_of(files, max_files=9, max_s=10.0)]
    assert by_length == [["1", "2"], ["3"], ["4", "5"]]
    assert [len(group) for group in groups_of(files[:2] * 3, max_files=4, max_s=100.0)] == [4, 2]
    assert not list(groups_of([], max_files=4, max_s=100.0))
