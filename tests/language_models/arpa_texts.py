"""ARPA files for tests, and a reference that scores with them word by word."""

from __future__ import annotations

import math
from collections.abc import Sequence

TINY = r"""
\data\
ngram 1=5
ngram 2=4
ngram 3=2

\1-grams:
-99	<s>	-0.5
-0.9	</s>
-1.5	<unk>
-0.4	a	-0.25
-0.7	b	-0.125

\2-grams:
-0.3	<s> a	-0.0625
-0.2	a b	-0.1
-0.8	b a
-0.35	b </s>

\3-grams:
-0.15	<s> a b
-0.05	a b </s>

\end\
"""


class Reference:
    """Looks n-grams up in dictionaries of the words in an ARPA text, as Katz's equation says."""

    def __init__(self, text: str) -> None:
        self.log_probs: dict[tuple[str, ...], float] = {}
        self.backoffs: dict[tuple[str, ...], float] = {}
        order = 0
        for line in text.splitlines():
            if line.endswith("-grams:"):
                order = int(line[1])
            elif order and line and not line.startswith("\\"):
                fields = line.split()
                words = tuple(fields[1 : order + 1])
                self.log_probs[words] = float(fields[0])
                self.backoffs[words] = float(fields[order + 1]) if len(fields) > order + 1 else 0.0
        self.order = order

    def log_prob(self, history: Sequence[str], word: str) -> float:
        """Return log10 P(word | history)."""
        words = (*history, word)[-self.order :] if self.order > 1 else (word,)
        if words in self.log_probs:
            return self.log_probs[words]
        if len(words) == 1:
            return self.log_probs.get(("<unk>",), -100.0)
        return self.backoffs.get(words[:-1], 0.0) + self.log_prob(words[1:-1], word)

    def of_text(self, words: Sequence[str]) -> list[float]:
        """Return log-probabilities in nats of the words of a sentence and of its end."""
        known = [word if (word,) in self.log_probs else "<unk>" for word in words]
        sentence = ["<s>", *known, "</s>"]
        return [self.log_prob(sentence[:place], sentence[place]) * math.log(10) for place in range(1, len(sentence))]
