"""The readers of a recipe's cuts, the same in training and evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lhotse.cut import Cut

from asr.data.features import Features
from asr.data.loading.acoustics import Acoustics
from asr.data.loading.dataset import Perturb, SpeechDataset
from asr.data.loading.loader import EvaluationLoader, Workers
from asr.data.loading.mixing import Mixing
from asr.data.loading.sampling import BucketingConfig, DurationBucketSampler
from asr.evaluation.wer import Unit
from asr.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class DataModule:
    """Makes datasets, samplers and loaders of cuts; like Lightning's, but without its hooks."""

    features: Features
    tokenizer: Tokenizer
    batch: BucketingConfig
    workers: Workers
    mixing: Mixing | None = None
    unit: Unit = "word"  # that is scored, and has times

    def training_data(
        self, cuts: Sequence[Cut], seed: int, perturb: Perturb | None
    ) -> tuple[SpeechDataset, DurationBucketSampler]:
        """Return dataset and sampler of training cuts.

        Raises:
            ValueError: a file that the augmentation needs cannot be used.
        """
        perturb = perturb.of_corpus(cuts) if isinstance(perturb, Acoustics) else perturb
        sampler = DurationBucketSampler(cuts, self.batch, seed, mixing=self.mixing)
        return SpeechDataset(self.features, self.tokenizer, perturb), sampler

    def evaluation_loader(self, cuts: Iterable[Cut]) -> EvaluationLoader:
        """Return a loader that reads every cut once."""
        dataset = SpeechDataset(self.features, self.tokenizer)
        return EvaluationLoader(dataset, DurationBucketSampler(cuts, self.batch, shuffle=False), self.workers)
