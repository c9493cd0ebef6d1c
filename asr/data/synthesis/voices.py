"""eSpeak NG's voice variants, in fixed splits.

A speaker is a variant; an accent is a language of eSpeak NG. FROZEN: no later change may make the test voices easier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

ACCENTS = (
    "en",
    "en-029",
    "en-gb-scotland",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
    "en-gb-x-rp",
    "en-us",
    "en-us-nyc",
)

# whispering, croaking and robots: not like human speech
LEFT_OUT = (
    *("Demonic", "UniRobot", "anikaRobot", "croak", "whisper", "whisperf"),
    *("robosoft", "robosoft2", "robosoft3", "robosoft4", "robosoft5", "robosoft6", "robosoft7", "robosoft8"),
)

# similar voices, by name or with two fifths of their settings in common; a family stays in one split
FAMILIES = (
    ("Diogo", "Henrique", "Hugo", "michel", "miguel"),
    ("Gene", "Gene2"),
    ("Mario", "Michael", "gustave"),
    ("Mike", "mike2"),
    ("Mr serious", "Tweaky", "grandpa", "john", "norbert"),
    ("Nguyen", "m8"),
    ("RicishayMax", "RicishayMax2", "RicishayMax3", "max"),
    ("aunty", "f4"),
    ("belinda", "linda"),
    ("edward", "edward2"),
    ("iven", "iven2", "iven3", "iven4"),
    ("klatt", "klatt2", "klatt3", "klatt4", "klatt5", "klatt6"),
    ("steph", "steph2", "steph3"),
)

DEV = ("Andrea", "Lee", "Reed", "Storm", "f2", "ian", "m2", "paul", "quincy", "shelby")

TEST = (
    *("Alex", "Annie", "Denis", "Jacky", "antonio", "boris", "caleb", "f3"),
    *("grandma", "m4", "m7", "robert", "steph", "steph2", "steph3", "victor"),
)

TRAIN = (
    *("Alicia", "Andy", "AnxiousAndy", "Diogo", "Gene", "Gene2", "Henrique", "Hugo", "Marco", "Mario", "Michael"),
    *("Mike", "Mr serious", "Nguyen", "RicishayMax", "RicishayMax2", "RicishayMax3", "Tweaky", "adam", "anika"),
    *("announcer", "aunty", "belinda", "benjamin", "david", "ed", "edward", "edward2", "f1", "f4", "f5", "fast"),
    *("grandpa", "gustave", "iven", "iven2", "iven3", "iven4", "john", "kaukovalta", "klatt", "klatt2", "klatt3"),
    *("klatt4", "klatt5", "klatt6", "linda", "m1", "m3", "m5", "m6", "m8", "marcelo", "max", "michel", "miguel"),
    *("mike2", "norbert", "pablo", "pedro", "rob", "sandro", "travis", "zac"),
)

VOICES = {"train": TRAIN, "dev": DEV, "test": TEST}


def draw_speaker(rng: np.random.Generator, split: str, accents: Sequence[str] = ACCENTS) -> dict[str, Any]:
    """Return a random voice of a split, speed, pitch and level."""
    variant, accent = str(rng.choice(VOICES[split])), str(rng.choice(accents))
    return {
        "variant": variant,
        "accent": accent,
        "voice": f"{accent}+{variant}",
        "words_per_minute": int(rng.integers(120, 221)),
        "pitch": int(rng.integers(20, 81)),
        "pitch_range": int(rng.integers(20, 81)),
        "word_gap": int(rng.integers(0, 4)),  # units of 10 ms
        "peak_dbfs": float(rng.uniform(-30, -6)),
        "lead_s": float(rng.uniform(0.1, 0.3)),
        "tail_s": float(rng.uniform(0.1, 0.3)),
    }
