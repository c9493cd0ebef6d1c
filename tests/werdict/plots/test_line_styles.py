"""Colors that everybody can tell apart."""

import itertools

import numpy as np
import pytest

from werdict.plots import FAINT, HUES, INK, PAPER, line_styles

# Machado, Oliveira and Fernandes 2009, "A physiologically-based model for simulation of color vision deficiency": what
# is seen without one kind of cone, as linear RGB
VISION = {
    "full": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(color: str) -> np.ndarray:
    values = np.array([int(color[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """As the Web Content Accessibility Guidelines have it."""
    low, high = sorted(float(linear(color) @ TO_XYZ[1]) for color in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def test_every_color_stands_out_from_the_paper():
    assert contrast(INK, PAPER) > 7
    assert all(contrast(hue, PAPER) >= 3 for hue in HUES)
    assert contrast(FAINT, PAPER) < 2


@pytest.mark.parametrize("vision", VISION)
def test_colors_differ_for_every_kind_of_color_vision(vision):
    seen = [lab(np.array(VISION[vision]) @ linear(color)) for color in (INK, *HUES)]
    assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2)) > 20


def test_forty_systems_look_different():
    names = [str(number) for number in range(40)]
    found = line_styles(names, "7")
    assert list(found) == names
    assert len(set(found.values())) == 40
    assert found["7"].color is INK
    assert all(found[name].color is not INK for name in names if name != "7")
