"""Recognizers of the recipes of large corpora have the sizes that their authors publish."""

import pytest

from asr.run.parts import outline_recognizer
from tests.configs import composed

# numbers of parameters, in icefall's RESULTS.md of LibriSpeech and AISHELL, and of tokens
PUBLISHED = {
    "librispeech/zipformer_s_cr_ctc": (22_118_279, 500),
    "librispeech/zipformer_m_cr_ctc": (64_250_603, 500),
    "librispeech/zipformer_m_transducer": (65_549_011, 500),
    "aishell/zipformer_m_cr_ctc": (66_218_471, 4336),
    "aishell/zipformer_m_transducer": (73_412_551, 4336),
}


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_recognizers_have_the_published_sizes(recipe):
    published, vocab_size = PUBLISHED[recipe]
    outline = outline_recognizer(composed(f"recipe={recipe}").options, vocab_size, 80)
    assert sum(p.numel() for p in outline.parameters()) == pytest.approx(published, rel=2e-4)
