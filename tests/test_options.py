"""Options out of their range are refused by their key, before what they belong to is built."""

import pytest

from asr.data.features import LogMel
from asr.data.loading.augmentation import AddBabble, AddNoise, Reverberate, SpeedPerturb, Telephone, Volume
from asr.data.loading.loader import Workers
from asr.data.loading.sampling import BucketingConfig
from asr.decoding.beam import AttentionRescoring, CtcBeam, TransducerBeam
from asr.decoding.greedy import TransducerGreedy
from asr.models.encoders.conformer import ConformerEncoder
from asr.models.encoders.transformer import TransformerEncoder
from asr.models.encoders.zapformer.encoder import ZapformerEncoder
from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from asr.models.heads.ctc import CrCtcHead, CtcAttentionHead, CtcHead
from asr.models.heads.transducer import TransducerCtcHead, TransducerHead
from asr.recipes.aishell.prepare import prepare_aishell
from asr.recipes.commonvoice.prepare import prepare_commonvoice
from asr.recipes.custom.prepare import prepare_custom
from asr.recipes.digits.prepare import prepare_digits
from asr.recipes.fsdd.prepare import prepare_fsdd
from asr.recipes.librispeech.prepare import prepare_librispeech
from asr.recipes.phrases.prepare import prepare_phrases
from asr.run.instantiate import check_values, instantiate, with_defaults
from asr.tracking.wandb_logger import log_comparison
from asr.training.callbacks.checkpoints import CheckpointCallback, WeightAveraging
from asr.training.callbacks.measurements import OptimizerHealth
from asr.training.callbacks.progress import StallWarning
from werdict.errors import ConfigError

LAYERED = {"d_model": -3, "num_layers": 0, "num_heads": 0, "d_feedforward": 0, "dropout": 1.0, "subsampling_factor": 3}
BEAM = {"beam_size": 0, "beam_size_token": 0, "lm_weight": -1.0, "lodr_weight": -1.0, "hotword_boost": 0.0}
TRANSDUCER = {
    **{"predictor_dim": 6, "joiner_dim": 0, "context_size": 0, "prune_range": 1, "lm_scale": 1.0, "backend": "k2"},
    **{"simple_loss_scale": 1.1, "warmup_batches": -1, "ref_duration_s": 0},
}
ZIPFORMER = {
    **{"encoder_dim": [24, 2], "feedforward_dim": [2], "encoder_unmasked_dim": [0], "num_encoder_layers": [1, 0]},
    **{"downsampling_factor": [0], "pos_dim": 47, "query_head_dim": 0, "subsampling_channels": [8, 16]},
    **{"dropout": 0.4, "ref_duration_s": 0.0, "chunk_size": [], "left_context_frames": [-2]},
}
ZAPFORMER = {
    **{"input_dim": 0, "encoder_dim": [0], "feedforward_multiple": [0], "num_encoder_layers": [1, 0]},
    **{"downsampling_factor": [0], "num_freqs": 1, "query_head_dim": 0, "subsampling_channels": [8, 16]},
    **{"noise": -1.0, "limiter_scale": -0.1, "ref_duration_s": 0.0, "chunk_size": [], "left_context_frames": [-2]},
}
EFFECT, NO_JOBS = {"probability": 1.5}, {"num_jobs": 0}
NO_SIZE = {"num_train": 0, "num_dev": 0, "num_test": 0}
REFUSED = {
    LogMel: {"num_mels": 0, "sampling_rate_hz": 0, "frame_shift_ms": 25.1},
    SpeedPerturb: {"factors": [0.999]},
    Reverberate: EFFECT,
    AddNoise: EFFECT,
    AddBabble: EFFECT,
    Telephone: EFFECT,
    Volume: EFFECT,
    Workers: {"num_workers": -1, "prefetch": 0},
    BucketingConfig: {"max_duration_s": 0, "num_buckets": 0, "quadratic_duration_s": 0},
    prepare_digits: {**NO_SIZE, **NO_JOBS},
    prepare_phrases: {**NO_SIZE, **NO_JOBS},
    prepare_fsdd: {**NO_SIZE, "max_digits": 1, "held_out_speaker": "bob"},
    prepare_aishell: NO_JOBS,
    prepare_commonvoice: NO_JOBS,
    prepare_custom: NO_JOBS,
    prepare_librispeech: NO_JOBS,
    TransformerEncoder: LAYERED,
    ConformerEncoder: {**LAYERED, "kernel_width": 0},
    ZipformerEncoder: ZIPFORMER,
    ZapformerEncoder: ZAPFORMER,
    CtcHead: {"dropout": 1.0, "intermediate_layers": [0], "intermediate_weight": 1.0},
    CrCtcHead: {"consistency_weight": 0.0, "intermediate_weight": 0.0},
    CtcAttentionHead: {"num_layers": 0, "num_heads": 0, "d_feedforward": 0, "ctc_weight": 1.0, "label_smoothing": -0.1},
    TransducerHead: TRANSDUCER,
    TransducerCtcHead: {**TRANSDUCER, "ctc_weight": 0.0, "consistency_weight": -0.1},
    CtcBeam: {**BEAM, "blank_skip_threshold": 0.4},
    AttentionRescoring: {**BEAM, "ctc_weight": 1.5},
    TransducerBeam: BEAM,
    TransducerGreedy: {"max_symbols": 0},
    WeightAveraging: {"every": 0, "ema_decay": 1.0},
    CheckpointCallback: {"keep_last": 0, "every_n_updates": 0},
    OptimizerHealth: {"every": 0},
    StallWarning: {"alignment_updates": 0, "num_validations": 0, "loss_span_updates": 0},
}
ROWS = [
    pytest.param(target, option, value, id=f"{target.__name__}-{option}")
    for target, options in REFUSED.items()
    for option, value in options.items()
]


def test_a_text_may_look_like_a_number():
    words = {"tags": [2024, 1.5, "first"], "group": 2024}
    assert check_values(log_comparison, words, "logger.wandb") == {"tags": ["2024", "1.5", "first"], "group": "2024"}


@pytest.mark.parametrize(("target", "option", "value"), ROWS)
def test_an_option_out_of_its_range_is_refused_by_its_key(target, option, value):
    node = {"_target_": f"{target.__module__}.{target.__name__}", "_partial_": True, option: value}
    with pytest.raises(ConfigError, match=rf"^part\.{option}\b"):
        instantiate(node, "part")


def test_an_optimizer_is_recorded_with_the_defaults_of_a_class_that_declares_them_all():
    node = {"_target_": "optim.AdamW", "betas": [0.9, 0.98], "weight_decay": None}
    found = with_defaults(node, "optimizer")
    assert found.items() >= {**node, "eps": 1e-8, "mars_gamma": 0.025, "capturable": False}.items()
    assert with_defaults({"_target_": "torch.optim.lr_scheduler.StepLR"}, "schedule").items() >= {"gamma": 0.1}.items()
    for name in ("collections.OrderedDict", "torch.optim.lr_scheduler"):
        assert with_defaults({"_target_": name}, "optimizer") == {"_target_": name}
