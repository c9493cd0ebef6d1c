import pytest
import torch

from asr.features.log_mel import GlobalNorm


def test_features_get_zero_mean_and_unit_variance():
    features = torch.randn(4, 500, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.1]) - 7
    flat = features.flatten(0, 1)
    normalized = GlobalNorm(flat.mean(0).tolist(), flat.std(0).tolist())(features).flatten(0, 1)
    torch.testing.assert_close(normalized.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(normalized.std(0), torch.ones(3), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("mean", "std"), [([0.0], [1.0, 1.0]), ([0.0], [0.0]), ([0.0, 0.0], [1.0, -1.0]), ([], [])], ids=str
)
def test_statistics_that_nothing_can_be_divided_by_are_refused(mean, std):
    with pytest.raises(ValueError, match="as many means as positive deviations"):
        GlobalNorm(mean, std)
