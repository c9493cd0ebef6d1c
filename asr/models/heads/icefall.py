"""Weights of icefall's CTC and transducer heads for ours.

V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import Tensor

from asr.models.encoders.zipformer.convert import check_weight

# the first that matches the whole name, and whose result the head has, counts
RULES = (
    (r"ctc_output\.1\.(weight|bias)", r"project.\1"),
    (r"ctc_output\.1\.(weight|bias)", r"ctc.project.\1"),
    (r"decoder\.(embedding\.weight|conv\.weight)", r"predictor.\1"),
    (r"(joiner\.(?:encoder_proj|decoder_proj|output_linear)\.(?:weight|bias))", r"\1"),
    (r"(simple_[al]m_proj\.(?:weight|bias))", r"\1"),
)


def convert_head(
    theirs: Mapping[str, Tensor], expected: Mapping[str, Tensor], order: Sequence[int]
) -> dict[str, Tensor]:
    """Give the tensors of icefall's heads the names of one of ours, and its order of tokens.

    Args:
        theirs: tensors of a model by their names; those of other heads are left out.
        expected: the state of our head: what must come out.
        order: (V,) the number that each of our tokens has there.

    Raises:
        ValueError: a tensor is missing, of another size, or holds no finite floating-point numbers.
    """
    weights: dict[str, Tensor] = {}
    for name, tensor in theirs.items():
        for pattern, ours in RULES:
            found = re.fullmatch(pattern, name)
            if found and found.expand(ours) in expected:
                weights[found.expand(ours)] = _shaped(name, tensor, expected[found.expand(ours)], order)
    if missing := sorted(set(expected) - set(weights)):
        parts = ", ".join(sorted({name.partition(".")[0] for name in theirs})) or "nothing"
        raise ValueError(
            f"the model has nothing for {missing[0]} of the head, and beside the encoder {parts}; ctc_output is for "
            "head=ctc, decoder and joiner are for head=transducer, all together for head=transducer_ctc"
        )
    return weights


def _shaped(name: str, tensor: Tensor, expected: Tensor, order: Sequence[int]) -> Tensor:
    if tensor.shape != expected.shape:
        raise ValueError(
            f"{name} has shape {list(tensor.shape)}, not {list(expected.shape)} as the head has with a vocabulary of "
            f"{len(order)}; give the tokenizer of the model, and the options of its head"
        )
    check_weight(tensor, name)
    of_vocabulary = not name.startswith(("decoder.conv", "joiner.encoder_proj", "joiner.decoder_proj"))
    return tensor[list(order)].clone() if of_vocabulary else tensor.detach().clone()
