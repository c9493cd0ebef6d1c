"""The text of a stream is that of the whole recording."""

import numpy as np
import pytest
import torch

from asr.data.features import LogMel
from asr.decoding.greedy import CtcGreedy, TransducerGreedy
from asr.features.log_mel import GlobalNorm
from asr.inference.streaming import StreamingRecognizer
from asr.models.encoders.transformer import TransformerEncoder
from asr.models.encoders.zapformer.encoder import ZapformerEncoder
from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from asr.models.heads.ctc import CtcHead
from asr.models.heads.transducer import TransducerHead
from asr.models.recognizer import Recognizer
from asr.text.tokenizer import CharacterTokenizerTrainer
from tests.models.zipformer.sizes import WAVE

TOKENIZER = CharacterTokenizerTrainer().train(["abc d"])
CHUNKS = {"causal": True, "chunk_size": [16], "left_context_frames": [32]}
STREAMED = {**WAVE, **CHUNKS}
ZAPFORMER = {
    **{"input_dim": 16, "encoder_dim": [16, 24], "feedforward_multiple": [2, 1], "num_encoder_layers": [1, 2]},
    **{"cnn_module_kernel": [7, 5], "downsampling_factor": [1, 4], "num_heads": 2, "num_freqs": 8, **CHUNKS},
}


def recognizer(kind: str, **options) -> Recognizer:
    torch.manual_seed(1)
    is_zapformer, kind = kind.endswith("zapformer"), kind.split()[0]
    encoder = ZapformerEncoder(80, **ZAPFORMER) if is_zapformer else ZipformerEncoder(80, **{**STREAMED, **options})
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    size = TOKENIZER.vocab_size
    head = CtcHead(encoder.d_model, size) if kind == "ctc" else TransducerHead(encoder.d_model, size, 8, 16)
    model = Recognizer(encoder, head, GlobalNorm([-8.0] * 80, [4.0] * 80)).eval()
    _enliven(model, head.project if kind == "ctc" else head.joiner.encoder_proj)
    return model


def _enliven(model: Recognizer, projection: torch.nn.Linear) -> None:
    """Let labels depend on what is heard, as those of a trained model do, instead of being all the same."""
    features = torch.from_numpy(LogMel().extractor.extract(babble(9, 5.0), 16_000))
    with torch.no_grad():
        encodings = model(features[None], torch.tensor([len(features)]))[0][0]
        projection.weight.normal_().div_(encodings.std(dim=0))
        projection.bias.copy_(-projection.weight @ encodings.mean(dim=0))
        if isinstance(model.head, TransducerHead):
            model.head.joiner.output_linear.weight.normal_()
            model.head.joiner.output_linear.bias.zero_()


def babble(seed: int, seconds: float, rate_hz: int = 16_000) -> np.ndarray:
    """Noise whose loudness and color change."""
    drawn = np.random.default_rng(seed)
    pieces = [
        drawn.uniform(0.001, 0.5) * np.convolve(drawn.normal(size=rate_hz // 10), drawn.normal(size=5), "same")
        for _ in range(round(10 * seconds))
    ]
    return np.concatenate(pieces).astype(np.float32)


@pytest.mark.parametrize("kind", ["ctc", "transducer", "ctc of a zapformer"])
@pytest.mark.parametrize("packet", [160, 1600, 12_345, 10**6])
def test_the_text_is_that_of_the_whole(kind, packet):
    model, features = recognizer(kind), LogMel()
    greedy = CtcGreedy() if kind != "transducer" else TransducerGreedy()
    texts = set()
    for seed, seconds in enumerate((0.1, 0.5, 2.0, 3.3) if packet == 160 else (5.0, 1.28)):
        samples = babble(seed, seconds)
        matrix = torch.from_numpy(features.extractor.extract(samples, 16_000))
        stream = StreamingRecognizer(model, TOKENIZER, features, endpoint_s=0.2)
        heard = [stream.accept(samples[begin : begin + packet]) for begin in range(0, len(samples), packet)]
        heard.append(stream.finish())
        with torch.inference_mode():
            encodings, lengths = model(matrix[None], torch.tensor([len(matrix)]))
            ((whole,),) = greedy(model.head, encodings, lengths)
        assert stream.search.tokens == whole.tokens
        finals = [one.text for one in heard if one.is_final and one.text]
        assert " ".join(finals).replace(" ", "") == TOKENIZER.decode(whole.tokens).replace(" ", "")
        texts.add(TOKENIZER.decode(whole.tokens))
    assert max(map(len, texts)) > 3


def test_what_was_heard_stays_until_a_pause_ends_it():
    stream = StreamingRecognizer(recognizer("ctc"), TOKENIZER, LogMel(), endpoint_s=0.2)
    before = ""
    for samples in np.split(babble(3, 4.0), 40):
        heard = stream.accept(samples)
        assert heard.text.startswith(before.rstrip())
        before = "" if heard.is_final else heard.text
    assert stream.finish().is_final


def test_chunks_last_as_long_as_the_encoder_says():
    assert StreamingRecognizer(recognizer("ctc"), TOKENIZER, LogMel()).chunk_s == pytest.approx(0.32)


def test_what_cannot_stream_is_refused():
    model = recognizer("ctc", causal=False)
    with pytest.raises(ValueError, match="causal"):
        StreamingRecognizer(model, TOKENIZER, LogMel())
    model.encoder = TransformerEncoder(80, d_model=16, num_layers=1, num_heads=2, d_feedforward=16)
    with pytest.raises(ValueError, match="TransformerEncoder"):
        StreamingRecognizer(model, TOKENIZER, LogMel())
