"""One step after another, and the loss on what is never trained on: what all ranks compute together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import AdamW

from trainer.config import TrainerConfig
from trainer.data import Batch, Rows
from trainer.endings import NonFiniteError
from trainer.metrics import peak_memory_gib
from trainer.model import Llama
from trainer.order import positions, row_at
from trainer.ranks import Ranks
from trainer.records import Record
from trainer.schedule import learning_rate


def adamw(model: Llama, config: TrainerConfig) -> AdamW:
    """AdamW over all parameters; what has one dimension, a norm, is not decayed."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=True)


@dataclass(kw_only=True)
class Steps:
    """Takes one step after another over the same model, data and optimizer."""

    config: TrainerConfig
    ranks: Ranks
    model: Llama
    optimizer: AdamW
    rows: Rows
    total: int
    taken: int = 0

    def read(self, step: int) -> list[Batch]:
        """This rank's micro batches of step `step`, from 0. No step needs more than its own number to find them."""
        return [self.rows.batch(indices) for indices in self.indices(step)]

    def indices(self, step: int) -> list[list[int]]:
        """The rows of this rank's micro batches."""
        places = positions(
            step=step,
            global_batch_size=self.config.global_batch_size,
            micro_batch_size=self.config.micro_batch_size,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
        )
        return [[row_at(place, rows=len(self.rows), seed=self.config.seed) for place in micro] for micro in places]

    def take(self, batches: list[Batch], labels: int) -> Record:
        """The next optimizer step.

        Args:
            batches: this rank's micro batches.
            labels: tokens to predict in the step over all ranks, by whose count the loss and the gradient are divided.

        Raises:
            NonFiniteError: the loss or the gradient is no number; the weights are as before.
        """
        rate = learning_rate(self.config, step=self.taken, total=self.total)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = torch.zeros((), device=self.ranks.device)
        for index, batch in enumerate(batch.to(self.ranks.device) for batch in batches):
            # Gradients are reduced once a step, with the last micro batch.
            self.model.set_requires_gradient_sync(index == len(batches) - 1)  # type: ignore[operator]  # FSDPModule's
            micro_loss = self.model(batch.tokens, batch.labels, batch.documents) / labels
            micro_loss.backward()
            loss += micro_loss.detach()
        own_loss = loss.clone()
        norm: Any = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.gradient_clip_norm or math.inf)
        dist.all_reduce(loss)
        # The norm is a DTensor, of which each rank has a part.
        mean_loss, gradient_norm = torch.stack((loss, norm.full_tensor())).tolist()
        if not math.isfinite(mean_loss) or not math.isfinite(gradient_norm):
            raise NonFiniteError(
                f"step {self.taken + 1}: the loss is {mean_loss} and the gradient norm {gradient_norm}; "
                f"rank {self.ranks.rank} has a loss of {own_loss.item()} on rows {self.indices(self.taken)}; "
                f"the weights are still those of step {self.taken}"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.taken += 1
        return {
            "loss": mean_loss,
            "gradient_norm": gradient_norm,
            "learning_rate": rate,
            "memory_gib": peak_memory_gib(self.ranks.device),
        }

    def speed(self, seconds: float) -> Record:
        """What a step of that many seconds amounts to, its wait for data and its stall for a checkpoint included."""
        tokens = self.config.global_batch_size * self.config.sequence_length
        speed = tokens / seconds / self.ranks.world_size
        peak = self.config.peak_tflops_per_gpu
        flops = self.model.config.flops_per_token(self.config.sequence_length)
        return {
            "step_seconds": seconds,
            "tokens_per_second_per_gpu": speed,
            "mfu": None if peak is None else speed * flops / (peak * 1e12),
        }


def evaluate(model: Llama, rows: Rows, config: TrainerConfig, ranks: Ranks) -> float:
    """The mean loss over all of `rows`, in nats a token. Every rank runs as many passes, since each gathers weights.

    Raises:
        InterruptedRunError: SIGTERM has reached a rank.
    """
    passes = -(-len(rows) // (config.micro_batch_size * ranks.world_size))
    loss = torch.zeros((), device=ranks.device, dtype=torch.float64)
    labels = 0
    model.eval()
    with torch.no_grad():
        for number in range(passes):
            first = (number * ranks.world_size + ranks.rank) * config.micro_batch_size
            indices = [index if index < len(rows) else None for index in range(first, first + config.micro_batch_size)]
            batch = rows.batch(indices)
            labels += ranks.end_if_asked(batch.label_count())[0]
            batch = batch.to(ranks.device)
            loss += model(batch.tokens, batch.labels, batch.documents)
    model.train()
    dist.all_reduce(loss)
    return float(loss / labels)
