"""How much of each corpus of a mixture a run is trained on."""

from __future__ import annotations

import lightning.pytorch as pl

from asr.training.speech_data_module import ResumableLoader


class MixtureShares(pl.Callback):
    """Logs ``train/share/<corpus>`` at validations: its share in the seconds since the epoch began."""

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the shares; a run of one corpus has none."""
        loader = trainer.train_dataloader
        if trainer.sanity_checking or not isinstance(loader, ResumableLoader):
            return
        for name, share in loader.corpus_shares().items():
            pl_module.log(f"train/share/{name}", share)
