import time

import pytest

from trainer.order import positions, row_at


@pytest.mark.parametrize("rows", [1, 2, 3, 10, 97, 1000])
def test_every_row_comes_once_in_an_epoch(rows: int) -> None:
    for epoch in (0, 1):
        seen = [row_at(epoch * rows + index, rows=rows, seed=3) for index in range(rows)]
        assert sorted(seen) == list(range(rows))


def test_another_epoch_and_another_seed_are_another_order() -> None:
    orders = [[row_at(e * 100 + i, rows=100, seed=s) for i in range(100)] for e, s in ((0, 0), (1, 0), (0, 1))]
    assert orders[0] != orders[1]
    assert orders[0] != orders[2]
    assert orders[0] != list(range(100))


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_a_step_takes_the_same_rows_at_any_world_size_each_by_one_rank(world_size: int) -> None:
    taken = [
        position
        for rank in range(world_size)
        for micro in positions(step=5, global_batch_size=16, micro_batch_size=2, rank=rank, world_size=world_size)
        for position in micro
    ]
    assert sorted(taken) == list(range(80, 96))


def test_a_place_among_ten_million_rows_is_found_at_once() -> None:
    began = time.perf_counter()
    row_at(3 * 10**7 + 9_999_999, rows=10**7, seed=0)
    assert time.perf_counter() - began < 0.1
