"""Synthesizes a list of sentences with eSpeak NG, in a process of its own.

    python speak.py PLAN.json FOLDER

A separate process, because eSpeak NG is under the GPL-3, and because its output depends on its earlier output: a new
process with a fixed seed and order gives the same audio again.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import espeakng_loader
import numpy as np
import soundfile
from numpy.typing import NDArray
from scipy.signal import resample_poly

AUDIO_OUTPUT_SYNCHRONOUS = 2
INITIALIZE_DONT_EXIT = 0x8000
CHARS_UTF8 = 1
RATE, PITCH, PITCH_RANGE, WORD_GAP = 1, 3, 4, 7

SynthCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class Espeak:
    """The C library, called through ctypes (see its speak_lib.h)."""

    def __init__(self, seed: int) -> None:
        self.library = ctypes.CDLL(espeakng_loader.get_library_path())
        data = espeakng_loader.get_data_path().encode()
        self.rate_hz = self.library.espeak_Initialize(AUDIO_OUTPUT_SYNCHRONOUS, 0, data, INITIALIZE_DONT_EXIT)
        if self.rate_hz <= 0:
            raise RuntimeError(f"eSpeak NG did not find its data in {data.decode()}; install espeakng-loader again")
        self.chunks: list[NDArray[np.int16]] = []
        self._callback = SynthCallback(self._collect)  # ctypes keeps no reference: a collected callback would crash
        self.library.espeak_SetSynthCallback(self._callback)
        self.library.espeak_ng_SetRandSeed.argtypes = [ctypes.c_long]
        self.library.espeak_ng_SetRandSeed(seed)

    def _collect(self, samples: Any, num_samples: int, events: Any) -> int:
        if samples and num_samples > 0:
            self.chunks.append(np.ctypeslib.as_array(samples, (num_samples,)).copy())
        return 0

    def say(self, text: str, voice: str, parameters: dict[int, int]) -> NDArray[np.float64]:
        """Return the sentence at the library's rate, between -1 and 1."""
        if self.library.espeak_SetVoiceByName(voice.encode()):
            raise ValueError(f"eSpeak NG has no voice {voice!r}")  # it would go on with the one before
        for parameter, value in parameters.items():
            self.library.espeak_SetParameter(parameter, value, 0)
        self.chunks = []
        encoded = text.encode() + b"\0"
        self.library.espeak_Synth(encoded, len(encoded), 0, 0, 0, CHARS_UTF8, None, None)
        self.library.espeak_Synchronize()
        return np.concatenate(self.chunks) / 32768.0


def finish(speech: NDArray[np.float64], rate_hz: int, item: dict[str, Any], target_hz: int) -> NDArray[np.float64]:
    """Resample, set the level, and add quiet noise before, under and after the speech."""
    speech = resample_poly(speech, target_hz, rate_hz)
    speech *= 10 ** (item["peak_dbfs"] / 20) / np.abs(speech).max()
    around = [np.zeros(round(item[key] * target_hz)) for key in ("lead_s", "tail_s")]
    audio = np.concatenate((around[0], speech, around[1]))
    noise = np.random.default_rng(item["noise_seed"]).normal(size=len(audio))
    return audio + noise * 10 ** (item["noise_dbfs"] / 20)


def main(plan_file: str, folder: str) -> None:
    """Write every item of a plan to ``<folder>/<id>.flac``."""
    plan = json.loads(Path(plan_file).read_text(encoding="utf-8"))
    espeak = Espeak(plan["seed"])
    for item in plan["items"]:
        parameters = {RATE: item["words_per_minute"], PITCH: item["pitch"], PITCH_RANGE: item["pitch_range"]}
        speech = espeak.say(item["text"], item["voice"], parameters | {WORD_GAP: item["word_gap"]})
        audio = finish(speech, espeak.rate_hz, item, plan["sampling_rate_hz"])
        soundfile.write(Path(folder) / f"{item['id']}.flac", audio, plan["sampling_rate_hz"], subtype="PCM_16")


if __name__ == "__main__":
    main(*sys.argv[1:])
