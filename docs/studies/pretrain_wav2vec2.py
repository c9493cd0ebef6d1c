"""Pretrain a small wav2vec2 by CTC on synthetic speech, for tests of fine-tuning without a download.

    python docs/studies/pretrain_wav2vec2.py FOLDER [--corpus digits|phrases] [--updates 600]

Writes what `Wav2Vec2ForCTC.from_pretrained` and `transformers.pipeline` read. About 8 CPU minutes for 600 updates;
needs the extras tts and pretrained. All but the audio and the optimizer is of Transformers, so that the folder is as
others make it.
Half of the audio has the band of a telephone, as corpora of 8 kHz have.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import torch
from lhotse import CutSet
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import Wav2Vec2Config, Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC

import optim
from asr.data.features import at_rate
from asr.recipes.digits.prepare import prepare_digits
from asr.recipes.phrases.prepare import prepare_phrases

RATE_HZ = 16_000
NUM_DEV: dict[str, Any] = {"num_dev": 60, "num_test": 1}
CORPORA: dict[str, Any] = {
    "digits": partial(prepare_digits, num_train=1000, **NUM_DEV),  # 35 minutes for training
    "phrases": partial(prepare_phrases, num_train=3000, **NUM_DEV),
}
BATCH_S = 12.0
LR = 3e-3
TOKENS = ["<pad>", "<unk>", "|", "'", *"abcdefghijklmnopqrstuvwxyz"]
ADAMW = r"bias$|norm\.[^.]+$|original|masked_spec_embed|conv_layers\.0\.|lm_head"  # what is no hidden matrix


def new_model() -> Wav2Vec2ForCTC:
    """Return a model of 1.3 million parameters with random weights."""
    config = Wav2Vec2Config(
        vocab_size=len(TOKENS),
        hidden_size=144,
        intermediate_size=576,
        num_hidden_layers=4,
        num_attention_heads=4,
        # 20 ms as wav2vec2, in four steps where it has seven
        conv_dim=[32, 64, 128, 128],
        conv_kernel=[20, 8, 8, 4],
        conv_stride=[10, 4, 4, 2],
        num_conv_pos_embeddings=32,
        num_conv_pos_embedding_groups=8,
        feat_extract_norm="layer",  # padding changes no encoding
        do_stable_layer_norm=True,
        layerdrop=0.0,
        mask_time_prob=0.0,
        ctc_loss_reduction="sum",
        pad_token_id=0,
    )
    return Wav2Vec2ForCTC(config)


def read(cuts: CutSet) -> list[tuple[np.ndarray, str]]:
    """Return audio and text, shortest first."""
    narrow = [at_rate(cut, RATE_HZ // 2) if i % 2 else cut for i, cut in enumerate(cuts)]
    utterances = [(at_rate(cut, RATE_HZ).load_audio()[0], cut.supervisions[0].text) for cut in narrow]
    return sorted(utterances, key=lambda utterance: len(utterance[0]))


def batches(utterances: list[tuple[np.ndarray, str]]) -> list[list[tuple[np.ndarray, str]]]:
    """Return utterances of nearly equal length in batches of `BATCH_S`."""
    found: list[list[tuple[np.ndarray, str]]] = [[]]
    for utterance in utterances:
        if (len(found[-1]) + 1) * len(utterance[0]) > BATCH_S * RATE_HZ:
            found.append([])
        found[-1].append(utterance)
    return found


class Corpus:
    """Synthetic speech as batches of audio and labels."""

    def __init__(self, prepare: Any, extractor: Wav2Vec2FeatureExtractor, tokenizer: Wav2Vec2CTCTokenizer) -> None:
        self.extractor, self.tokenizer = extractor, tokenizer
        splits = prepare().splits
        self.train, self.dev = (
            batches(read(CutSet.from_manifests(splits[name].recordings, splits[name].supervisions)))
            for name in ("train", "dev")
        )

    def inputs(self, batch: list[tuple[np.ndarray, str]]) -> dict[str, Tensor]:
        """Return what the model takes."""
        audio, texts = zip(*batch, strict=True)
        labels = self.tokenizer(list(texts), padding=True, return_tensors="pt")
        made = self.extractor(list(audio), sampling_rate=RATE_HZ, padding=True, return_tensors="pt")
        return {**made, "labels": labels.input_ids.masked_fill(labels.attention_mask == 0, -100)}

    @torch.inference_mode()
    def dev_wer(self, model: Wav2Vec2ForCTC) -> float:
        """Return the WER of greedy search on the dev set."""
        model.eval()
        found = [model(**self.inputs(batch)).logits.argmax(dim=-1) for batch in self.dev]
        model.train()
        texts = [text for ids in found for text in self.tokenizer.batch_decode(ids)]
        return float(jiwer.wer([text for batch in self.dev for _, text in batch], texts))


def new_optimizer(model: nn.Module) -> Optimizer:
    """Return Muon for hidden matrices, and AdamW for the others."""
    adamw = partial(optim.AdamW, lr=LR, betas=(0.9, 0.98))
    muon = partial(optim.Muon, lr=LR, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    return optim.grouped(muon, [{"pattern": ADAMW, "optimizer": adamw}, {"pattern": ".*"}])(model.named_parameters())


def train(model: Wav2Vec2ForCTC, corpus: Corpus, num_updates: int) -> None:
    """Train, and print the WER on dev."""
    generator = np.random.default_rng(1)
    optimizer = new_optimizer(model)
    schedule = optim.WarmupCosine(optimizer, num_updates, warmup_steps=0.1)
    # the shortest first: alignments of short utterances are learned sooner
    order = list(range(len(corpus.train)))[::-1]
    for update in range(1, num_updates + 1):
        order = order or list(generator.permutation(len(corpus.train)))
        batch = corpus.train[order.pop()]
        loss = model(**corpus.inputs(batch)).loss / sum(len(text) for _, text in batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if update % 100 == 0 or update == num_updates:
            wer, minutes = corpus.dev_wer(model), time.process_time() / 60
            print(f"update {update}: loss {loss:.3f}, dev WER {wer:.1%}, {minutes:.1f} CPU minutes", flush=True)


def main() -> None:
    """Synthesize, train, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--updates", type=int, default=600, help="0: random weights")
    parser.add_argument("--corpus", choices=CORPORA, default="digits")
    parser.add_argument("--audio", type=Path, default=Path("data"), help="folder of the synthetic speech")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(TOKENS)}))
    extractor = Wav2Vec2FeatureExtractor(sampling_rate=RATE_HZ, do_normalize=True, return_attention_mask=True)
    tokenizer = Wav2Vec2CTCTokenizer(options.folder / "vocab.json", bos_token=None, eos_token=None)
    torch.manual_seed(1)
    model = new_model()
    if options.updates:
        prepare = partial(CORPORA[options.corpus], options.audio.absolute() / options.corpus)
        train(model, Corpus(prepare, extractor, tokenizer), options.updates)
    model.save_pretrained(options.folder)
    extractor.save_pretrained(options.folder)
    tokenizer.save_pretrained(options.folder)


if __name__ == "__main__":
    main()
