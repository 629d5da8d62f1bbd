from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.loss import CHUNK_TOKENS, IGNORED_LABEL, summed_token_loss


@pytest.mark.parametrize("tokens", [1, CHUNK_TOKENS, 3 * CHUNK_TOKENS + 7])
def test_loss_and_gradients_are_those_of_torchs_cross_entropy(tokens: int) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(tokens, 24, requires_grad=True), torch.randn(131, 24, requires_grad=True)
    labels = torch.randint(0, 131, (tokens,))
    labels[::3] = IGNORED_LABEL
    loss = summed_token_loss(hidden, weight, labels) * 0.25
    expected = F.cross_entropy(hidden @ weight.T, labels, ignore_index=IGNORED_LABEL, reduction="sum") * 0.25
    torch.testing.assert_close(loss, expected)
    ours = torch.autograd.grad(loss, (hidden, weight))
    theirs = torch.autograd.grad(expected, (hidden, weight))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_labels_that_are_all_ignored_cost_nothing_and_pull_nowhere() -> None:
    hidden, weight = torch.randn(5, 8, requires_grad=True), torch.randn(11, 8, requires_grad=True)
    loss = summed_token_loss(hidden, weight, torch.full((5,), IGNORED_LABEL))
    loss.backward()
    assert loss == 0
    assert hidden.grad is not None
    assert not hidden.grad.any()


class _LargestTensor(TorchDispatchMode):
    """Watches for the largest tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.numel())
        return out


def test_the_full_logits_never_exist() -> None:
    tokens, vocabulary = 8 * CHUNK_TOKENS, 500
    hidden, weight = torch.randn(tokens, 8, requires_grad=True), torch.randn(vocabulary, 8, requires_grad=True)
    with _LargestTensor() as largest:
        summed_token_loss(hidden, weight, torch.randint(0, vocabulary, (tokens,))).backward()
    assert largest.elements <= max(CHUNK_TOKENS * vocabulary, hidden.numel())


def test_a_bf16_head_gets_gradients_summed_in_fp32() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(1024, 16), torch.randn(67, 16)
    labels = torch.randint(0, 67, (1024,))
    exact = weight.clone().requires_grad_()
    summed_token_loss(hidden, exact, labels).backward()
    half = weight.bfloat16().requires_grad_()
    summed_token_loss(hidden.bfloat16(), half, labels).backward()
    assert exact.grad is not None
    assert half.grad is not None
    error = (half.grad.float() - exact.grad).norm() / exact.grad.norm()
    assert error < 0.02
