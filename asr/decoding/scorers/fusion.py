"""What beam searches add to their log-probabilities: the options that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypedDict, runtime_checkable

from asr.decoding.scorers.hotwords import MAX_BOOST, HotwordScorer, read_phrases
from asr.decoding.scorers.ngram import NGramScorer
from asr.decoding.scorers.protocol import Scorer
from asr.decoding.scorers.weighted_sum import WeightedSum
from asr.language_models.arpa import read_arpa
from asr.language_models.ngrams import SPECIAL
from asr.safe_io import named_path
from asr.text.tokenizer import Tokenizer
from asr.text.vocabulary import NUM_SPECIAL, SPACE_PIECE


@runtime_checkable
class LoadsScorers(Protocol):
    """A decoder that a language model and hotwords may add to."""

    def load_scorers(self, tokenizer: Tokenizer, normalize: Callable[[str], str]) -> list[str]:
        """Read the files, see ``ShallowFusion``."""


class FusionOptions(TypedDict, total=False):
    """Options of ``ShallowFusion``."""

    lm: str | None
    lm_weight: float
    token_bonus: float
    hotwords: str | None
    hotword_boost: float


class ShallowFusion:
    """A search with a language model and hotwords, which add to scores token by token.

    Attributes:
        scorer: adds to the scores of hypotheses; before ``load_scorers`` is called, only the bonus.
    """

    def __init__(
        self,
        lm: str | None = None,
        lm_weight: float = 0.3,
        token_bonus: float = 0.0,
        hotwords: str | None = None,
        hotword_boost: float = 1.5,
    ) -> None:
        """Check the options.

        Args:
            lm: ARPA file with a language model over tokens.
            lm_weight: of its log-probabilities; the others have weight 1.
            token_bonus: added for each token, against the language model's liking for short texts.
            hotwords: text file with phrases, as in ``read_phrases``.
            hotword_boost: added for each token of a phrase without a boost of its own.

        Raises:
            ValueError: there is no such file, or a number is out of its range.
        """
        if not 0 <= lm_weight <= 10:
            raise ValueError(f"lm_weight must be at least 0 and at most 10, given {lm_weight}")
        if not -MAX_BOOST <= token_bonus <= MAX_BOOST:
            raise ValueError(
                f"token_bonus must be at least -{MAX_BOOST:g} and at most {MAX_BOOST:g}, given {token_bonus}"
            )
        if not 0 < hotword_boost <= MAX_BOOST:
            raise ValueError(f"hotword_boost must be above 0 and at most {MAX_BOOST:g}, given {hotword_boost}")
        self._lm = _file("lm", lm)
        self._hotwords = _file("hotwords", hotwords)
        self._lm_weight, self._token_bonus, self._hotword_boost = lm_weight, token_bonus, hotword_boost
        self.scorer: Scorer = WeightedSum([], token_bonus)

    def load_scorers(self, tokenizer: Tokenizer, normalize: Callable[[str], str]) -> list[str]:
        """Read the files, for the tokens of a run; return a line about each, for those who read the results.

        Args:
            tokenizer: of the run.
            normalize: text → text as in the transcripts of the run.

        Raises:
            ValueError: a file is malformed, or has nothing to do with the tokens.
        """
        scorers: list[tuple[Scorer, float]] = []
        notes = []
        if self._lm is not None:
            model, note = _language_model(self._lm, tokenizer.pieces)
            scorers.append((model, self._lm_weight))
            notes.append(f"{note}; weight {self._lm_weight:g}, bonus per token {self._token_bonus:g}")
        if self._hotwords is not None:
            phrases = read_phrases(self._hotwords, self._hotword_boost, lambda text: tokenizer.encode(normalize(text)))
            scorers.append((HotwordScorer(phrases, tokenizer.vocab_size, _boundary(tokenizer.pieces)), 1.0))
            notes.append(f"{len(phrases)} hotwords of {self._hotwords}")
        self.scorer = WeightedSum(scorers, self._token_bonus)
        return notes


def _file(option: str, given: str | None) -> Path | None:
    """Return the path of a file that is there; what is in it is read later."""
    if given is None:
        return None
    path = named_path(given)
    if not path.is_file():
        raise ValueError(f"{option}: there is no file {str(path)!r}")
    return path


def _language_model(path: Path, pieces: Sequence[str]) -> tuple[NGramScorer, str]:
    """Return a scorer, and what it is."""
    model = read_arpa(path)
    tokens = pieces[NUM_SPECIAL:]
    missing = [piece for piece in tokens if piece not in model.numbers]
    if len(missing) == len(tokens):
        words = [word for word in model.words if word not in SPECIAL]
        raise ValueError(
            f"lm: {path} is a model of other tokens: its words are like {words[:3]}, the tokens of the run like "
            f"{tokens[:3]}, and none is among both; asr-lm run=RUN text=FILE output=FILE makes one that fits"
        )
    lacking = f", without {len(missing)} of {len(tokens)} tokens, such as {missing[:3]}" if missing else ""
    return NGramScorer(model, pieces), f"language model {path} of order {model.order}{lacking}"


def _boundary(pieces: Sequence[str]) -> int | None:
    """Return the token between words, if no other says where a word begins."""
    marked = [number for number, piece in enumerate(pieces) if piece.startswith(SPACE_PIECE)]
    return marked[0] if [pieces[number] for number in marked] == [SPACE_PIECE] else None
