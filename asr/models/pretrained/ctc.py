"""The CTC head of a model of transformers, and its vocabulary of characters."""

from __future__ import annotations

from torch import Tensor

from asr.models.pretrained.files import VOCABULARY, Snapshot
from asr.plain_data import read_json
from asr.text.vocabulary import SPACE_PIECE, SPECIAL_PIECES

SPECIAL = ("<s>", "</s>", "<pad>", "<unk>", "[PAD]", "[UNK]")


def ctc_head(snapshot: Snapshot) -> tuple[list[str], dict[str, Tensor]]:
    """Return the pieces of a character tokenizer of ours, and weights by the names of a recognizer's CTC head.

    Raises:
        ValueError: the model has no such head, or its tokens are not characters.
    """
    state, options = snapshot.weights(), snapshot.options()
    path = snapshot.folder / VOCABULARY
    if "lm_head.weight" not in state or not path.is_file():
        raise ValueError(f"{snapshot.name} has no CTC head, which would be lm_head.weight and {VOCABULARY}")
    vocabulary = {str(token): int(number) for token, number in read_json(path).items()}
    tokens = {number: token for token, number in vocabulary.items() if token not in SPECIAL}
    if longer := [token for token in tokens.values() if len(token) > 1]:
        raise ValueError(f"{path} has tokens that are not characters, such as {longer[0]!r}")
    blank = int(options.get("pad_token_id", 0))  # as transformers trains it
    unknown = vocabulary.get("<unk>", vocabulary.get("[UNK]", blank))
    order = sorted(tokens)
    rows = [blank, unknown, *order]
    pieces = [*SPECIAL_PIECES, *(SPACE_PIECE if tokens[number] == "|" else tokens[number] for number in order)]
    return pieces, {f"head.project.{kind}": state[f"lm_head.{kind}"][rows].float() for kind in ("weight", "bias")}
