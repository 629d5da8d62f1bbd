"""Batch and world-size arithmetic. Called at synth by the config and at start by the trainer: same answer, same error."""

from __future__ import annotations

from trainer.config import ConfigError


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
