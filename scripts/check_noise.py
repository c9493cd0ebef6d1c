"""How noise harms: the WER of runs on their first test set, clean and with noise at falling levels.

Run:  python scripts/check_noise.py --noise FOLDER RUN …

Each utterance gets a part of one recording of the folder, the same for all runs and levels. For a fair comparison the
recordings must not be those that a run was trained with.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterable
from pathlib import Path

import soundfile
from lhotse import Recording
from lhotse.cut import Cut
from lhotse.utils import fastcopy
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from asr.data.loading.augmentation import Acoustics, AddNoise
from asr.evaluation.confidence import bootstrap_interval
from asr.evaluation.wer import score
from asr.inference.decode import decode_all
from asr.run.command_line import CONFIGS
from asr.run.restore import prepared_data, restore

SNRS_DB = (20.0, 10.0, 5.0, 0.0)


def noisy(cuts: Iterable[Cut], folder: str, snr_db: float, written: Path) -> list[Cut]:
    """Return cuts of files with noise that depends on their ids alone, ``snr_db`` below the speech.

    Args:
        cuts: clean ones.
        folder: recordings of noise.
        snr_db: signal-to-noise ratio.
        written: folder for the files.
    """
    acoustics = Acoustics(noise=AddNoise(probability=1.0, folder=folder, snr_db=(snr_db, snr_db)))
    acoustics.check_files()
    found = []
    for number, cut in enumerate(cuts):
        path = written / f"{snr_db:g}-{number}.wav"
        samples = acoustics(cut, random.Random(cut.id)).load_audio()[0]
        soundfile.write(path, samples, cut.sampling_rate, "FLOAT")
        recording = Recording.from_file(path, recording_id=cut.recording_id)
        # what is known of the clean file does not hold
        found.append(fastcopy(cut, start=0.0, channel=0, recording=recording, custom=None))
    return found


def row(run: str, folder: str) -> list[str]:
    """Return WER % with its interval for clean speech and each level of noise."""
    decoder = OmegaConf.load(CONFIGS / "decoder" / "ctc_greedy.yaml")
    fixed = {"weights": "raw", "average_since": None, "batch_duration_s": 120.0, "num_workers": 0, "torch_threads": 1}
    restored = restore(OmegaConf.create({"run": run, "decoder": decoder, **fixed}))
    prepared = prepared_data(restored.checkpoint, "prepare them again")
    name, *_ = prepared.names("test")
    clean, cells = list(prepared.cuts(name)), []
    for snr_db in (None, *SNRS_DB):
        level = "clean" if snr_db is None else f"{snr_db:g} dB"
        with tempfile.TemporaryDirectory() as written:
            cuts = clean if snr_db is None else noisy(clean, folder, snr_db, Path(written))
            found = decode_all(restored.recognizer, restored.decoder, restored.data_module, cuts, f"{name}, {level}")
        scored = score(found.results)
        around = bootstrap_interval(scored)
        cells.append(f"{100 * scored.wer:.2f} [{100 * around.low:.2f}, {100 * around.high:.2f}]")
    return cells


def main() -> None:
    """Print a row for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or a checkpoint, with a CTC head")
    parser.add_argument("--noise", required=True, metavar="FOLDER", help="recordings of noise")
    given = parser.parse_args()
    table = Table("WER % on test [95 % interval]", "clean", *(f"{snr_db:g} dB" for snr_db in SNRS_DB))
    for run in given.runs:
        table.add_row(Path(run).name, *row(run, given.noise))
    Console().print(table)


if __name__ == "__main__":
    main()
