"""Cross-entropy that never holds the logits of more than a few hundred tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

IGNORED_LABEL = -100

# Rows of logits at a time: 256 x 128,256 in fp32 are 131 MB, and the matrix products are already at full speed.
CHUNK_TOKENS = 256


def summed_token_loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The sum over tokens of the negative log-likelihood of `labels`, in nats. The caller divides by the label count.

    The gradients are computed in the forward pass, chunk by chunk, so that no chunk's logits are kept or made twice.

    Args:
        hidden: [tokens, width], the last layer's output.
        weight: [vocabulary, width], the head.
        labels: [tokens], token ids, or -100 where there is nothing to predict.

    Returns:
        A scalar in fp32.
    """
    loss: Tensor = _ChunkedCrossEntropy.apply(hidden, weight, labels)  # type: ignore[no-untyped-call]
    return loss


class _ChunkedCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        needs_hidden, needs_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        hidden_gradient = torch.empty_like(hidden) if needs_hidden else None
        # Sums over chunks would lose bits in bf16.
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if needs_weight else None
        for start in range(0, hidden.shape[0], CHUNK_TOKENS):
            rows = slice(start, start + CHUNK_TOKENS)
            kept = labels[rows] != IGNORED_LABEL
            targets = torch.where(kept, labels[rows], 0).unsqueeze(1)
            logits = (hidden[rows] @ weight.T).float()
            normalizer = torch.logsumexp(logits, dim=1, keepdim=True)
            loss += ((normalizer - logits.gather(1, targets)).squeeze(1) * kept).sum()
            if not (needs_hidden or needs_weight):
                continue
            # d loss / d logits = softmax - one-hot, in the place of the logits.
            gradient = logits.sub_(normalizer).exp_()
            gradient.scatter_add_(1, targets, torch.full_like(targets, -1, dtype=gradient.dtype))
            gradient.mul_(kept.unsqueeze(1))
            gradient = gradient.to(hidden.dtype)
            if hidden_gradient is not None:
                torch.mm(gradient, weight, out=hidden_gradient[rows])
            if weight_gradient is not None:
                if weight.dtype == torch.float32:
                    weight_gradient.addmm_(gradient.T, hidden[rows])
                else:
                    weight_gradient += gradient.T @ hidden[rows]
        ctx.save_for_backward(hidden_gradient, None if weight_gradient is None else weight_gradient.to(weight.dtype))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return (
            None if hidden_gradient is None else hidden_gradient.mul_(gradient.to(hidden_gradient.dtype)),
            None if weight_gradient is None else weight_gradient.mul_(gradient.to(weight_gradient.dtype)),
            None,
        )
