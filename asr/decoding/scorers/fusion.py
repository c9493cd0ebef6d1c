"""What beam searches add to their log-probabilities: the options that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from pydantic import NonNegativeFloat, PositiveFloat

from asr.decoding.scorers.hotwords import HotwordScorer, read_phrases
from asr.decoding.scorers.ngram import NGramScorer
from asr.decoding.scorers.scorer import Scorer, WeightedSum
from asr.decoding.scorers.word_ngram import WordNGramScorer
from asr.language_models.arpa import read_arpa
from asr.language_models.ngrams import SPECIAL
from asr.safe_io import named_path
from asr.text.tokenizer import Tokenizer
from asr.text.vocabulary import NUM_SPECIAL, SPACE_PIECE

FILE_OPTIONS = ("lm", "lodr", "hotwords")  # of a search, which name files
# values of weights that are worth trying
TRIED: Mapping[str, Sequence[float]] = {
    "lm_weight": (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.3, 1.6, 2.0),
    "lodr_weight": (0.0, 0.1, 0.2, 0.4),
    "token_bonus": (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0),
}


class FusionOptions(TypedDict, total=False):
    """Options of ``ShallowFusion``."""

    lm: str | None
    lm_weight: NonNegativeFloat
    lodr: str | None
    lodr_weight: NonNegativeFloat
    token_bonus: float
    hotwords: str | None
    hotword_boost: PositiveFloat


class ShallowFusion:
    """A search with language models and hotwords, which add to scores token by token.

    Attributes:
        scorer: adds to the scores of hypotheses; before ``load_scorers`` is called, only the bonus.

    Reference:
        Zheng et al. 2022, "An Empirical Study of Language Model Integration for Transducer based Speech Recognition",
        arXiv:2203.16776, for the model of low order that is subtracted (LODR).
    """

    def __init__(
        self,
        lm: str | None = None,
        lm_weight: NonNegativeFloat = 0.3,
        lodr: str | None = None,
        lodr_weight: NonNegativeFloat = 0.1,
        token_bonus: float = 0.0,
        hotwords: str | None = None,
        hotword_boost: PositiveFloat = 1.0,
    ) -> None:
        """Set the options.

        Args:
            lm: ARPA file with a language model over tokens, or over words.
            lm_weight: of its log-probabilities; the others have weight 1.
            lodr: ARPA file with a model of low order of the transcripts that the run was trained on; its
                log-probabilities are subtracted, in place of what a transducer has itself learned of them.
            lodr_weight: of these.
            token_bonus: added for each token, against the language model's liking for short texts.
            hotwords: text file with phrases, as in ``read_phrases``.
            hotword_boost: added for each token of a phrase whose line has no boost.

        Raises:
            ValueError: there is no such file.
        """
        self._models = {"lm": _file("lm", lm), "lodr": _file("lodr", lodr)}
        self._hotwords, self._hotword_boost = _file("hotwords", hotwords), hotword_boost
        self.weights = {"lm_weight": lm_weight, "lodr_weight": lodr_weight, "token_bonus": token_bonus}
        self._loaded: dict[str, tuple[Scorer, str]] = {}
        self.weigh()

    def load_scorers(self, tokenizer: Tokenizer, normalize: Callable[[str], str]) -> None:
        """Read the files, for the tokens of a run.

        Args:
            normalize: text → text as in the transcripts of the run.

        Raises:
            ValueError: a file is malformed, or has nothing to do with the tokens.
        """
        for option, path in self._models.items():
            if path is not None:
                self._loaded[option] = _language_model(option, path, tokenizer, normalize)
        if self._hotwords is not None:
            phrases = read_phrases(self._hotwords, self._hotword_boost, lambda text: tokenizer.encode(normalize(text)))
            beginnings = [number for number, piece in enumerate(tokenizer.pieces) if piece.startswith(SPACE_PIECE)]
            # a token between words, if no other says where a word begins
            boundary = beginnings[0] if [tokenizer.pieces[number] for number in beginnings] == [SPACE_PIECE] else None
            scorer = HotwordScorer(phrases, tokenizer.vocab_size, boundary, beginnings)
            self._loaded["hotwords"] = scorer, f"{len(phrases)} hotwords of {self._hotwords}"
        self.weigh()

    def weigh(self, **weights: float) -> None:
        """Change some of the weights."""
        self.weights.update(weights)
        signed = {"lm": self.weights["lm_weight"], "lodr": -self.weights["lodr_weight"], "hotwords": 1.0}
        scorers = [(scorer, signed[option]) for option, (scorer, _) in self._loaded.items() if signed[option]]
        self.scorer: Scorer = WeightedSum(scorers, self.weights["token_bonus"])

    @property
    def tunable(self) -> Mapping[str, Sequence[float]]:
        """Return the weights of the language models that were loaded, and the bonus that goes with them."""
        names = [f"{option}_weight" for option in self._models if option in self._loaded]
        return {name: TRIED[name] for name in (*names, "token_bonus")} if names else {}

    @property
    def notes(self) -> list[str]:
        """Return a line about each file."""
        lm, lodr, bonus = self.weights.values()
        ends = {"lm": f"; weight {lm:g}, bonus per token {bonus:g}", "lodr": f", subtracted; weight {lodr:g}"}
        return [f"{description}{ends.get(option, '')}" for option, (_, description) in self._loaded.items()]


def _file(option: str, value: str | None) -> Path | None:
    """Return the path of a file that is there; what is in it is read later."""
    if value is None:
        return None
    path = named_path(value)
    if not path.is_file():
        raise ValueError(f"{option}: {str(path)!r} is not a file that exists")
    return path


def _language_model(
    option: str, path: Path, tokenizer: Tokenizer, normalize: Callable[[str], str]
) -> tuple[Scorer, str]:
    """Return a scorer, and what it is: a model of words if it lacks the mark of a space, and few are tokens."""
    model, pieces = read_arpa(path), tokenizer.pieces
    tokens = pieces[NUM_SPECIAL:]
    words = [word for word in model.words if word not in SPECIAL]
    missing = [piece for piece in tokens if piece not in model.numbers]
    num_common = len(tokens) - len(missing)
    # with a word or two that are tokens by chance it is a model of words still, and so it is of letters and words
    token_set, letters = set(tokens), {*"".join(tokens)}
    of_tokens = 2 * num_common > len(words) and not any(
        len(word) > 1 and word not in token_set and letters.issuperset(word) for word in words
    )
    has_spaces = any(SPACE_PIECE in piece for piece in tokens)
    if has_spaces and not any(SPACE_PIECE in word for word in words) and not of_tokens:
        try:
            return (
                WordNGramScorer(model, tokenizer.surfaces, normalize),
                f"language model {path} of order {model.order}, of {len(words)} words",
            )
        except ValueError as error:
            raise ValueError(f"{option}: {path}: {error}") from None
    if not of_tokens:
        raise ValueError(
            f"{option}: {path} is a model of other tokens: its {len(words)} words are like {words[:3]}, the tokens of "
            f"the run like {tokens[:3]}, and {num_common or 'none'} are among both; asr-lm run=RUN text=FILE "
            "output=FILE makes one that fits"
        )
    lacking = f", without {len(missing)} of {len(tokens)} tokens, such as {missing[:3]}" if missing else ""
    return NGramScorer(model, pieces), f"language model {path} of order {model.order}{lacking}"
