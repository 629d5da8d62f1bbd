import math
from typing import Any

import pytest

from tests.trainer.conftest import OPTIONS
from trainer.config import ConfigError, TrainerConfig, validate
from trainer.schedule import gradient_accumulation_steps, learning_rate, mesh_axes, total_steps


def config(**changes: Any) -> TrainerConfig:
    return validate(TrainerConfig, OPTIONS | changes, source="the test")


def test_a_global_batch_is_divided_among_ranks_and_micro_batches() -> None:
    assert gradient_accumulation_steps(global_batch_size=512, micro_batch_size=2, world_size=128) == 2


@pytest.mark.parametrize(("batch", "nearest"), [(500, 512), (1, 256)])
def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_that_does(batch: int, nearest: int) -> None:
    with pytest.raises(ConfigError, match=rf"multiple of .* = 256, got {batch}; the nearest is {nearest}"):
        gradient_accumulation_steps(global_batch_size=batch, micro_batch_size=2, world_size=128)


def test_each_strategy_has_its_mesh() -> None:
    assert mesh_axes("FULL_SHARD", world_size=16, shard_group_size=None) == {"dp_shard": 16}
    assert mesh_axes("SHARD_GRAD_OP", world_size=16, shard_group_size=None) == {"dp_shard": 16}
    assert mesh_axes("HYBRID_SHARD", world_size=16, shard_group_size=8) == {"dp_replicate": 2, "dp_shard": 8}
    assert mesh_axes("NO_SHARD", world_size=16, shard_group_size=None) == {"dp_replicate": 16, "dp_shard": 1}


@pytest.mark.parametrize("world_size", [8, 12])
def test_a_hybrid_mesh_that_would_be_a_full_one_or_does_not_divide_is_refused(world_size: int) -> None:
    with pytest.raises(ConfigError, match="HYBRID_SHARD needs a world size that is two or more shard groups"):
        mesh_axes("HYBRID_SHARD", world_size=world_size, shard_group_size=8)


def test_the_rate_warms_up_peaks_and_falls_to_its_floor() -> None:
    run = config(learning_rate=1.0, warmup_steps=10, steps=110, final_learning_rate_fraction=0.1)
    rates = [learning_rate(run, step=step, total=110) for step in range(110)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert max(rates) == rates[10] == 1.0
    assert rates[60] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 2)))
    assert 0.1 < rates[-1] < 0.101


@pytest.mark.parametrize(("decay", "middle"), [("cosine", 0.5), ("linear", 0.5), ("constant", 1.0)])
def test_each_decay_has_its_shape(decay: str, middle: float) -> None:
    run = config(learning_rate=1.0, warmup_steps=0, decay=decay, final_learning_rate_fraction=0.0)
    assert learning_rate(run, step=50, total=100) == pytest.approx(middle)
    quarter = learning_rate(run, step=25, total=100)
    assert quarter == pytest.approx({"cosine": 0.8536, "linear": 0.75, "constant": 1.0}[decay], abs=1e-4)


def test_epochs_become_steps_by_the_rows_of_the_data() -> None:
    assert total_steps(config(steps=None, epochs=3), rows=100) == 37
    assert total_steps(config(steps=5), rows=100) == 5


def test_a_warm_up_longer_than_the_epochs_is_refused() -> None:
    with pytest.raises(ConfigError, match="warmup_steps: must not exceed the 12 steps that epochs 1 of this data make"):
        total_steps(config(steps=None, epochs=1, warmup_steps=13), rows=100)
    assert total_steps(config(steps=None, epochs=1, warmup_steps=12), rows=100) == 12


def test_data_that_does_not_fill_one_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="must hold at least global_batch_size 8 sequences of 16 tokens, got 7"):
        total_steps(config(), rows=7)
