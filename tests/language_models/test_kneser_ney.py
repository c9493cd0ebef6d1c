import itertools
import math
import random
from collections import Counter, defaultdict

import pytest

from asr.language_models import FALLBACK, arpa_lines, estimate, laid_out, read_arpa
from tests.language_models.arpa_texts import Reference

WORDS = ["<s>", "</s>", "<unk>", "a", "b", "c", "d", "never"]


class BruteForce:
    """The equations, with dictionaries and a recursion for every probability."""

    def __init__(self, sentences: list[list[str]], words: list[str], order: int) -> None:
        self.words = words[1:]
        texts = [["<s>", *sentence, "</s>"] for sentence in sentences]
        raw = [
            Counter(tuple(text[i : i + n]) for text in texts for i in range(len(text) - n + 1))
            for n in range(1, order + 1)
        ]
        self.counts: list[dict[tuple[str, ...], int]] = []
        for n, grams in enumerate(raw, 1):
            before = defaultdict(set)
            for longer in raw[n] if n < order else ():
                before[longer[1:]].add(longer[0])
            keep = n == order
            self.counts.append(
                {g: count if keep or (g[0] == "<s>" and n > 1) else len(before[g]) for g, count in grams.items()}
            )
        self.counts[0].pop(("<s>",))
        self.discounts = [self._discounts(Counter(counts.values())) for counts in self.counts]

    def _discounts(self, n: Counter) -> tuple[float, ...]:
        if not (n[1] and n[2] and n[3]):
            return FALLBACK
        y = n[1] / (n[1] + 2 * n[2])
        found = tuple(k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3))
        return found if min(found) >= 0 else FALLBACK

    def prob(self, history: tuple[str, ...], word: str) -> float:
        counts, discounts = self.counts[len(history)], self.discounts[len(history)]
        followers = {gram[-1]: count for gram, count in counts.items() if gram[:-1] == history}
        lower = self.prob(history[1:], word) if history else 1 / len(self.words)
        if not followers:
            return lower
        total, taken = sum(followers.values()), {w: discounts[min(c, 3) - 1] for w, c in followers.items() if c}
        own = max(followers.get(word, 0) - taken.get(word, 0), 0)
        return own / total + sum(taken.values()) / total * lower


def sentences_of(seed: int, count: int) -> list[list[str]]:
    rng = random.Random(seed)
    return [rng.choices("abcd", weights=(8, 4, 2, 1), k=rng.randrange(6)) for _ in range(count)]


def reference(sentences: list[list[str]], order: int) -> tuple[Reference, list[int]]:
    numbers = [[WORDS.index(word) for word in sentence] for sentence in sentences]
    model, assumed = estimate(laid_out(numbers), WORDS, order)
    return Reference("".join(arpa_lines(model))), assumed


@pytest.mark.parametrize("order", [1, 2, 4])
@pytest.mark.parametrize(("seed", "count"), [(0, 4), (2, 300)])
def test_probabilities_equal_brute_force_and_those_of_a_context_sum_to_one(order, seed, count):
    sentences = sentences_of(seed, count)
    found, _ = reference(sentences, order)
    brute = BruteForce(sentences, WORDS, order)
    contexts = [words for n in range(order) for words in itertools.product("abcd", repeat=n)]
    for context in itertools.chain(contexts, (("<s>", *words) for words in contexts if len(words) < order - 1)):
        probs = {word: 10 ** found.log_prob(context, word) for word in WORDS[1:]}
        assert sum(probs.values()) == pytest.approx(1, abs=1e-5)
        assert probs == pytest.approx({word: brute.prob(context, word) for word in WORDS[1:]}, rel=1e-5)


def test_orders_whose_discounts_are_assumed_are_named():
    """Of four letters only the 4-grams are many enough, of two sentences none."""
    assert reference(sentences_of(2, 300), 4)[1] == [1, 2, 3]
    assert estimate(laid_out([[3], [4]]), WORDS, 2)[1] == [1, 2]


def test_no_sentence_has_as_many_words_as_asked_for(tmp_path):
    model, _ = estimate(laid_out([[3], [4]]), WORDS, 5)
    assert model.order == 3
    (tmp_path / "lm.arpa").write_text("".join(arpa_lines(model)))
    assert read_arpa(tmp_path / "lm.arpa").counts == model.counts


def test_nothing_is_followed_by_a_beginning():
    assert reference(sentences_of(1, 5), 2)[0].log_probs[("<s>",)] == -99


def test_a_repeated_text_is_predicted():
    found, _ = reference([list("abcd")] * 50 + sentences_of(3, 20), 3)
    assert math.prod(10**p for p in map(found.log_prob, (["<s>"], ["<s>", "a"], ["a", "b"], ["b", "c"]), "abcd")) > 0.3
