"""Names that classes and options had in earlier versions, which runs, checkpoints and recipes of that time hold."""

from __future__ import annotations

from typing import Any

# module then, module now, classes; THEN:NOW if its name has changed too
MOVED = (
    (
        "asr.data.loading.acoustics",
        "asr.data.loading.augmentation",
        "Acoustics:AudioAugmentation AddBabble AddNoise Reverberate Telephone Volume",
    ),
    ("asr.data.loading.perturb", "asr.data.loading.augmentation", "SpeedPerturb"),
    ("asr.data.waveform", "asr.data.features", "Waveform"),
    ("asr.decoding.attention_rescoring", "asr.decoding.beam", "AttentionRescoring"),
    ("asr.decoding.ctc_beam", "asr.decoding.beam", "CtcBeam"),
    ("asr.decoding.transducer_beam", "asr.decoding.beam", "TransducerBeam"),
    ("asr.decoding.ctc_greedy", "asr.decoding.greedy", "CtcGreedy"),
    ("asr.decoding.transducer_greedy", "asr.decoding.greedy", "TransducerGreedy"),
    ("asr.models.heads.cr_ctc", "asr.models.heads.ctc", "CrCtcHead"),
    ("asr.models.heads.ctc_attention", "asr.models.heads.ctc", "CtcAttentionHead"),
    ("asr.models.heads.transducer.head", "asr.models.heads.transducer", "TransducerHead"),
    ("asr.models.heads.transducer.with_ctc", "asr.models.heads.transducer", "TransducerCtcHead"),
    ("asr.text.character", "asr.text.tokenizer", "CharacterTokenizerTrainer"),
    ("asr.text.subword", "asr.text.tokenizer", "SentencePieceTrainer"),
    ("asr.text.normalize", "werdict.normalization", "TextNormalizer"),
    ("asr.training.callbacks.averaging", "asr.training.callbacks.checkpoints", "WeightAveraging"),
    ("asr.training.callbacks.checkpoint_callback", "asr.training.callbacks.checkpoints", "CheckpointCallback"),
    ("asr.training.callbacks.cost", "asr.training.callbacks.measurements", "TrainingCost"),
    ("asr.training.callbacks.mixture_shares", "asr.training.callbacks.measurements", "MixtureShares"),
    ("asr.training.callbacks.optimizer_health", "asr.training.callbacks.measurements", "OptimizerHealth"),
    ("asr.training.callbacks.preemption", "asr.training.callbacks.checkpoints", "Preemption"),
    ("asr.training.callbacks.sample_tables", "asr.training.callbacks.measurements", "SampleTables"),
    ("asr.training.callbacks.stall_warning", "asr.training.callbacks.progress", "StallWarning"),
)
PRESENT = {
    f"{then}.{name.partition(':')[0]}": f"{now}.{name.rpartition(':')[2]}"
    for then, now, names in MOVED
    for name in names.split()
}
OPTIONS = {("trainer", "capture"): "cuda_graphs"}  # section and name then, name now
FORMER = {present: former for former, present in PRESENT.items()}


def with_present_names(config: Any) -> Any:
    """Return a config as plain data with each ``_target_``, and each option, under the name that it has now."""
    present = _renamed(config, PRESENT)
    for (section, former), name in OPTIONS.items():
        options = present.get(section) if isinstance(present, dict) else None
        if isinstance(options, dict) and former in options:
            options[name] = options.pop(former)
    return present


def with_former_names(config: Any) -> Any:
    """Return plain data with each ``_target_`` under the name from which data were fingerprinted first."""
    return _renamed(config, FORMER)


def _renamed(config: Any, names: dict[str, str]) -> Any:
    if isinstance(config, dict):
        return {
            key: names.get(str(value), value) if key == "_target_" else _renamed(value, names)
            for key, value in config.items()
        }
    return [_renamed(item, names) for item in config] if isinstance(config, list) else config
