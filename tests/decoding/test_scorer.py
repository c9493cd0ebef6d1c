import torch

from asr.decoding.scorers.scorer import WeightedSum, select


class Counting:
    """Adds a step per token that has come before, and the number of tokens at the end."""

    def __init__(self, step: float) -> None:
        self.step = step

    def start(self, batch_size, device):
        return (torch.zeros(batch_size, 1, 2, device=device),)

    def score(self, state, tokens):
        return (state[0][..., :1] * self.step).expand(tokens.shape)

    def advance(self, state, tokens):
        return (state[0] + (tokens != 0).unsqueeze(2),)

    def end(self, state):
        return state[0][..., 0]


def test_a_sum_of_sums_weighs_each_scorer_and_counts_tokens():
    inner = WeightedSum([(Counting(1.0), 2.0)], token_bonus=0.25)
    scorer = WeightedSum([(inner, 0.5), (Counting(10.0), -1.0)], token_bonus=3.0)
    state = scorer.start(1, torch.device("cpu"))
    state = scorer.advance(select(state, torch.zeros(1, 3, dtype=torch.int64)), torch.tensor([[0, 5, 7]]))
    state = scorer.advance(select(state, torch.tensor([[2, 0]])), torch.tensor([[4, 0]]))
    found = scorer.score(state, torch.tensor([[[1, 2], [3, 4]]]))
    twice = 0.5 * (2 * 2 + 0.25) - 20 + 3
    never = 0.5 * 0.25 + 3
    torch.testing.assert_close(found, torch.tensor([[[twice] * 2, [never] * 2]], dtype=torch.float64))
    torch.testing.assert_close(scorer.end(state), torch.tensor([[0.5 * 2 * 2 - 2, 0.0]], dtype=torch.float64))
