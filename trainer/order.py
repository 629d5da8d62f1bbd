"""The global order of training rows: a pure function of seed and position, so that one integer is the whole state."""

from __future__ import annotations

import hashlib

ROUNDS = 4  # of the Feistel network; four make its output indistinguishable from a random permutation's


def row_at(position: int, *, rows: int, seed: int) -> int:
    """The row that stands at `position` of the endless order, in which every epoch is another permutation.

    It costs the same at any position, keeps nothing in memory, and does not know how many ranks share the work.

    Args:
        position: rows that come before, over all epochs.
        rows: rows in the data.
        seed: the run's seed.
    """
    epoch, index = divmod(position, rows)
    half_bits = max(1, ((rows - 1).bit_length() + 1) // 2)
    key = hashlib.blake2b(f"{seed} {epoch}".encode(), digest_size=16).digest()
    # The network permutes a power of four; walking on from outside the data ends inside it, one to one.
    while True:
        index = _permuted(index, half_bits, key)
        if index < rows:
            return index


def _permuted(index: int, half_bits: int, key: bytes) -> int:
    mask = (1 << half_bits) - 1
    left, right = index >> half_bits, index & mask
    for turn in range(ROUNDS):
        digest = hashlib.blake2b(right.to_bytes(8, "little"), digest_size=8, key=key, salt=bytes([turn])).digest()
        left, right = right, left ^ (int.from_bytes(digest, "little") & mask)
    return (left << half_bits) | right


def positions(
    *, step: int, global_batch_size: int, micro_batch_size: int, rank: int, world_size: int
) -> list[list[int]]:
    """The positions that a rank runs in a step, one list for each micro batch.

    Step `step` (from 0) takes the positions from `step * global_batch_size` on, whatever the world size, so a run
    continues exactly with another number of ranks.
    """
    first = step * global_batch_size
    pass_size = micro_batch_size * world_size
    return [
        [first + done + rank * micro_batch_size + index for index in range(micro_batch_size)]
        for done in range(0, global_batch_size, pass_size)
    ]
