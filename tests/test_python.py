"""What docs/python.md promises beyond its blocks, which test_blocks.py runs."""

import pytest

import asr


def test_a_wrong_option_is_an_error_of_its_kind():
    with pytest.raises(asr.ConfigError, match=r"optimizer\.lr"):
        asr.train(["optimizer.lr=fast"])


def test_every_name_is_found():
    assert all(getattr(asr, name) for name in asr.__all__)
