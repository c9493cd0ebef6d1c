import os
from pathlib import Path

import espeakng_loader

from asr.data.synthesis.speak_corpus import VOICES

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


def test_every_variant_belongs_to_one_split_or_is_left_out():
    variants = set(os.listdir(Path(espeakng_loader.get_data_path()) / "voices" / "!v"))
    listed = [name for names in VOICES.values() for name in names] + list(LEFT_OUT)
    assert len(listed) == len(set(listed))
    assert set(listed) == variants


def test_families_stay_within_one_split():
    for family in FAMILIES:
        assert sum(not set(family).isdisjoint(names) for names in VOICES.values()) == 1, family
