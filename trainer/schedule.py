"""Batch, world-size and mesh arithmetic, the same at synth and at start: same answer, same error."""

from __future__ import annotations

import math
from typing import assert_never

from trainer.config import ConfigError, Strategy, TrainerConfig


def gradient_accumulation_steps(*, global_batch_size: int, micro_batch_size: int, world_size: int) -> int:
    """Micro batches that each rank runs in a step.

    Args:
        global_batch_size: sequences in a step, over all ranks.
        micro_batch_size: sequences a rank runs at a time.
        world_size: ranks in the run.

    Raises:
        ConfigError: the global batch is not a whole number of micro batches on every rank.
    """
    sequences_per_pass = micro_batch_size * world_size
    steps, remainder = divmod(global_batch_size, sequences_per_pass)
    if steps < 1 or remainder:
        nearest = max(1, round(global_batch_size / sequences_per_pass)) * sequences_per_pass
        raise ConfigError(
            f"global_batch_size: must be a multiple of micro_batch_size {micro_batch_size} x world size {world_size} = "
            f"{sequences_per_pass}, got {global_batch_size}; the nearest is {nearest}"
        )
    return steps


def mesh_axes(strategy: Strategy, *, world_size: int, shard_group_size: int | None) -> dict[str, int]:
    """Device-mesh axes and their sizes in ranks, outermost first.

    Raises:
        ConfigError: the world cannot be cut into more than one shard group of that size.
    """
    match strategy:
        case "FULL_SHARD" | "SHARD_GRAD_OP":
            return {"dp_shard": world_size}
        case "NO_SHARD":
            return {"dp_replicate": world_size, "dp_shard": 1}
        case "HYBRID_SHARD":
            assert shard_group_size is not None, "TrainerConfig refuses HYBRID_SHARD without a shard group"
            groups, remainder = divmod(world_size, shard_group_size)
            if groups < 2 or remainder:
                raise ConfigError(
                    f"shard_group_size: HYBRID_SHARD needs a world size that is two or more shard groups, "
                    f"got shard groups of {shard_group_size} in a world of {world_size}; "
                    f"use FULL_SHARD for a single group, or other nodes"
                )
            return {"dp_replicate": groups, "dp_shard": shard_group_size}
        case _:
            assert_never(strategy)


def total_steps(config: TrainerConfig, *, rows: int) -> int:
    """Optimizer steps of the run.

    Args:
        config: the run.
        rows: sequences in the training data.

    Raises:
        ConfigError: the data does not fill one step, or its epochs end before the warm-up does.
    """
    if rows < config.global_batch_size:
        raise ConfigError(
            f"data: must hold at least global_batch_size {config.global_batch_size} sequences of "
            f"{config.sequence_length} tokens, got {rows}; add data or lower global_batch_size"
        )
    if config.steps is not None:
        return config.steps
    assert config.epochs is not None, "TrainerConfig demands one of the two"
    steps = config.epochs * rows // config.global_batch_size
    if config.warmup_steps > steps:
        raise ConfigError(
            f"warmup_steps: must not exceed the {steps} steps that epochs {config.epochs} of this data make, "
            f"got {config.warmup_steps}; shorten the warm-up or add epochs"
        )
    return steps


def learning_rate(config: TrainerConfig, *, step: int, total: int) -> float:
    """The learning rate of step `step`, counted from 0, in a run of `total` steps."""
    peak, floor = config.learning_rate, config.learning_rate * config.final_learning_rate_fraction
    if step < config.warmup_steps:
        return peak * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, total - config.warmup_steps)
    match config.decay:
        case "constant":
            return peak
        case "linear":
            return peak + (floor - peak) * progress
        case "cosine":
            return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * progress))
        case _:
            assert_never(config.decay)
