"""Error rates as they are compared: clipped logarithms or points, and their moves without one speaker."""

import numpy as np
import pytest

from werdict.statistics.judge import on_scale

WORDS = np.array([40, 25, 35])
ERRORS = np.array([[[4, 2, 9], [0, 1, 0]], [[0, 0, 0], [40, 25, 35]], [[3, 0, 0], [50, 30, 40]]])


def value(errors, words, scale):
    """One run, by hand: between half an error and 100 %."""
    return (
        errors.sum() / words.sum()
        if scale == "points"
        else np.log(np.clip(errors.sum(), 0.5, words.sum()) / words.sum())
    )


@pytest.mark.parametrize("scale", ["ratio", "points"])
def test_moves_are_those_of_leaving_each_speaker_out(scale):
    values, moves, _ = on_scale(ERRORS, WORDS, scale)
    for place in np.ndindex(values.shape):
        assert values[place] == pytest.approx(value(ERRORS[place], WORDS, scale))
        for unit in range(3):
            without = value(np.delete(ERRORS[place], unit), np.delete(WORDS, unit), scale)
            assert moves[(*place, unit)] == pytest.approx(without - values[place])


def test_a_ratio_counts_half_an_error_and_at_most_all_words():
    values, _, resolution = on_scale(ERRORS, WORDS, "ratio")
    assert np.exp(values[1]) == pytest.approx([0.005, 1])
    assert np.exp(values[2]) == pytest.approx([0.03, 1])  # 120 % are as bad as 100 %
    assert resolution == pytest.approx([1 / 8, 1 / 50.25, 1 / 51.5])  # one error of 8 is about an eighth more


def test_points_are_not_clipped():
    values, _, resolution = on_scale(ERRORS, WORDS, "points")
    assert values[2].tolist() == pytest.approx([0.03, 1.2])
    assert resolution == pytest.approx([0.01] * 3)
