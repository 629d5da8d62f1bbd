"""The fabric check tells EFA from everything else by NCCL's log, and two ranks agree on their verdict."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.fabric_check import bus_bandwidth, transport_faults

REPOSITORY = Path(__file__).parents[2]

# In the form of logs of NCCL 2.27 with plugin 1.17, and of plugins before 1.14, which wrote a capital and another name.
GOOD = """\
node-0:79:79 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)
node-0:79:79 [0] NCCL INFO Using network Libfabric
node-0:79:99 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/Libfabric/0/GDRDMA
"""
OLDER = "NET/OFI Selected Provider is efa (found 4 nics)\nNCCL INFO Using network AWS Libfabric\n"


@pytest.mark.parametrize("log", [GOOD, OLDER])
def test_efa_is_known_by_the_plugins_words(log: str) -> None:
    assert transport_faults(log) == []


@pytest.mark.parametrize(
    ("log", "fault"),
    {
        "": "NCCL says of no network that it uses it",
        "NCCL INFO Using network Socket\n": "NCCL uses network Socket, not Libfabric",
        GOOD.replace("is efa,", "is tcp,"): "libfabric's provider is tcp, not efa",
        GOOD.replace("Selected provider", "Failed provider"): "libfabric's provider is unknown, not efa",
        GOOD + "NCCL INFO Channel 01/0 : 0[0] -> 8[0] [send] via NET/Socket/1\n": "a channel goes via NET/Socket",
    }.items(),
)
def test_everything_else_is_a_fault(log: str, fault: str) -> None:
    assert any(found.startswith(fault) for found in transport_faults(log))


def test_the_bus_bandwidth_is_that_of_a_ring() -> None:
    """Each rank sends every byte to its neighbour twice, less its own share."""
    chunk, ranks = 1_000_000, 8
    sent = sum(chunk for phase in ("reduce-scatter", "all-gather") for step in range(ranks - 1))
    assert bus_bandwidth(size_bytes=chunk * ranks, seconds=0.5, world_size=ranks) == pytest.approx(sent / 0.5 / 1e9)


@pytest.mark.parametrize(("least", "status"), [("0", 0), ("1e6", 1)])
def test_two_ranks_measure_and_end_alike(least: str, status: int) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    options = ["--device=cpu", "--mebibytes=1", "--repetitions=2", f"--least-gb-per-second={least}"]
    done = subprocess.run(
        [*command, "trainer.fabric_check", *options],
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == status, done.stderr
    assert "all-reduce of 1 MiB over 2 ranks" in done.stdout
    assert ("is below the published 1e+06" in done.stderr) == bool(status)
