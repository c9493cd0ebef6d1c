"""A checkpoint that can stream, made of one that cannot."""

from __future__ import annotations

from pathlib import Path

import torch

from asr.run.parts import build_recognizer
from asr.run.restore import model_options, recognizer_of
from asr.training.checkpoints import checkpoint_file, load_checkpoint
from tests.models.zipformer.sizes import WAVE
from tests.small_runs import SmallRun

ENCODER = {
    "_target_": "asr.models.encoders.zipformer.encoder.ZipformerEncoder",
    **{name: list(value) for name, value in WAVE.items()},
    **{"causal": True, "chunk_size": [16], "left_context_frames": [32]},
}


def make_causal_checkpoint(small_run: SmallRun, path: Path) -> Path:
    """Write a checkpoint with an untrained causal Zipformer."""
    source = checkpoint_file(str(small_run.run_dir))
    state = torch.load(source, weights_only=True)
    config = {**state["werdict"]["config"], "encoder": ENCODER}
    checkpoint = load_checkpoint(source)
    options = model_options(checkpoint).updated(encoder=ENCODER)
    built = build_recognizer(options, len(checkpoint.weights["head.project.weight"]), [-8.0] * 80, [4.0] * 80)
    state["werdict"]["config"] = config
    state["state_dict"] = {f"recognizer.{name}": tensor for name, tensor in built.state_dict().items()}
    for key in ("averages", "callbacks", "optimizer_states", "lr_schedulers", "loops"):
        state.pop(key, None)
    torch.save(state, path)
    recognizer_of(load_checkpoint(path))
    return path
