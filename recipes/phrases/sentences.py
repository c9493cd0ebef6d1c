"""A small grammar of English sentences of three to seven words. FROZEN: results would no longer be comparable."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np

from asr.data.loading.sampling import seed_for

MIN_WORDS, MAX_WORDS = 3, 7
# sentences are hashed into ten parts, so that no sentence is in two splits
PARTS = {"train": range(8), "dev": (8,), "test": (9,)}

# expansions of each name, with weights; names in braces are expanded recursively
RULES: dict[str, dict[str, float]] = {
    "sentence": {
        "{who} {handled} {what}": 14,
        "{who} {adverb} {handled} {what}": 5,
        "{name} {handled} {what} {when}": 4,
        "we {handled} {what} {where}": 4,
        "{who} will {handle} {what}": 5,
        "please {handle} {what}": 7,
        "can you {handle} {what}": 6,
        "did {who} {handle} {what}": 4,
        "{who} {met} {whom}": 7,
        "{who} {adverb} {met} {whom}": 4,
        "{name} wants to {meet} {whom}": 5,
        "you should {meet} {whom}": 5,
        "{who} {ate} {dish}": 7,
        "{name} {ate} {dish} and {food}": 5,
        "we would like to {eat} {dish}": 5,
        "please {eat} {dish}": 4,
        "{who} {went} to the {place}": 4,
        "{animal} {went} {across} the {place}": 5,
        "we will {go} {when}": 5,
        "please {go} to the {place}": 3,
        "{who} {stayed} {where}": 5,
        "{animal} {stayed} {where}": 4,
        "{who} {stayed} {adverb}": 4,
        "they {stay} {when}": 5,
        "do not {stay} {where}": 5,
        "there is {a_thing} {where}": 3,
        "where is {what}": 2,
        "her {thing} is {thing_quality}": 5,
        "{who} is {person_quality}": 4,
        "{dish} was {food_quality}": 2,
        "it was {weather} {when}": 4,
        "they saw {number} {animal_name} tracks": 3,
        "{who} has {number} {colour} boxes": 2,
        "{who} talked about {topic}": 3,
        "{who} dreams of {topic}": 3,
        "the train leaves at {clock} {day_part}": 1,
    },
    "who": {
        "the {person}": 4,
        "the {person_quality} {person}": 3,
        "{name}": 3,
        "my {relative}": 1,
        "our {relative}": 0.5,
    },
    "whom": {
        "the {person}": 4,
        "the {person_quality} {person}": 2,
        "{name}": 2,
        "{animal}": 3,
        "his {relative}": 0.5,
    },
    "animal": {"the {animal_name}": 3, "a {colour} {animal_name}": 1, "an {animal_age} {animal_name}": 0.5},
    "animal_age": {"old": 1, "angry": 1, "enormous": 1},
    "what": {"the {thing}": 4, "{a_thing}": 3, "the {colour} {thing}": 1, "her {thing}": 1},
    "a_thing": {
        "a {thing}": 0.5,
        "a {thing_quality} {thing}": 3,
        "a {material} {thing}": 1.5,
        "a {colour} {thing}": 0.5,
    },
    "dish": {"the {food}": 2, "some {food}": 2, "the {food_quality} {food}": 2, "more {food}": 1},
    "where": {"in the {place}": 3, "near the {place}": 2, "behind the {place}": 2, "outside the {place}": 1},
    "across": {"across": 1, "through": 1, "around": 1, "towards": 1},
    "when": {"{day_part}": 2, "on {day}": 2, "in {month}": 2, "in {season}": 0.5, "at {clock}": 1},
}


# the words under each ``[class]``, the most frequent first
_PARTS = re.split(r"^\[(\w+)\]$", Path(__file__).with_name("words.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
CLASSES = {name: listed.split() for name, listed in zip(_PARTS[1::2], _PARTS[2::2], strict=True)}

VOCABULARY = frozenset(
    word
    for text in [*(template for rule in RULES.values() for template in rule), *(" ".join(c) for c in CLASSES.values())]
    for word in re.sub(r"{\w+}", " ", text).split()
)


def sentence(rng: np.random.Generator, split: str) -> str:
    """Return a random sentence of a split."""
    while True:
        # "an" before a vowel
        text = re.sub(r"\ba (?=[aeiou])(?!uni|use|eu)", "an ", _expand("sentence", rng))
        fits = MIN_WORDS <= len(text.split()) <= MAX_WORDS and not re.search(r"\b(\w+) (and|but) \1\b", text)
        if fits and seed_for(text) % 10 in PARTS[split]:
            return text


def _expand(name: str, rng: np.random.Generator) -> str:
    """Return a word of a class, or an expanded template of a rule."""
    if name in CLASSES:
        return _draw(CLASSES[name], _frequencies(len(CLASSES[name])), rng)
    template = _draw(list(RULES[name]), list(RULES[name].values()), rng)
    return re.sub(r"{(\w+)}", lambda match: _expand(match[1], rng), template)


@cache
def _frequencies(num_words: int) -> list[float]:
    """Return word probabilities: mostly rank ** -2, and a small uniform part."""
    by_rank = [(rank + 1) ** -2.0 for rank in range(num_words)]
    return [0.93 * weight / sum(by_rank) + 0.07 / num_words for weight in by_rank]


def _draw(choices: list[str], weights: list[float], rng: np.random.Generator) -> str:
    return choices[int(np.searchsorted(np.cumsum(weights), rng.random() * sum(weights), side="right"))]
