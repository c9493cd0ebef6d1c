import os
from pathlib import Path

import espeakng_loader

from asr.data.synthesis.speak_corpus import FAMILIES, LEFT_OUT, VOICES


def test_every_variant_belongs_to_one_split_or_is_left_out():
    variants = set(os.listdir(Path(espeakng_loader.get_data_path()) / "voices" / "!v"))
    listed = [name for names in VOICES.values() for name in names] + list(LEFT_OUT)
    assert len(listed) == len(set(listed))
    assert set(listed) == variants


def test_families_stay_within_one_split():
    for family in FAMILIES:
        assert sum(not set(family).isdisjoint(names) for names in VOICES.values()) == 1, family
