"""Measures the all-reduce between nodes, and fails unless EFA carries it: `torchrun … -m trainer.fabric_check --help`.

A fabric that has fallen back to TCP trains all the same, ten times slower. Ends with 0 if all is well, else with 1 on
every rank and a sentence for each fault.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from trainer.config import ConfigError
from trainer.ranks import RDMA_INTERFACES, check_locked_memory

WARM_UPS = 3
MIB = 2**20


def bus_bandwidth(*, size_bytes: int, seconds: float, world_size: int) -> float:
    """GB/s that each link carries in a ring, whatever the number of ranks.

    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """
    return size_bytes / seconds * 2 * (world_size - 1) / world_size / 1e9


def transport_faults(log: str) -> list[str]:
    """What NCCL's own log, at level INFO, says against EFA. Nothing if EFA carries the traffic.

    The plugin's lines: https://github.com/aws/aws-ofi-nccl/blob/master/src/nccl_ofi_net.cpp
    """
    faults = []
    networks = re.findall(r"Using network (.+)", log)
    if not networks:
        faults.append("NCCL says of no network that it uses it; set NCCL_DEBUG=INFO, and check two nodes or more")
    if others := sorted({name.strip() for name in networks if "libfabric" not in name.lower()}):
        faults.append(f"NCCL uses network {', '.join(others)}, not Libfabric; check the image's NCCL plugin")
    providers = {name.lower() for name in re.findall(r"Selected provider is (\w+)", log, re.IGNORECASE)}
    if networks and providers != {"efa"}:
        faults.append(
            f"libfabric's provider is {', '.join(sorted(providers)) or 'unknown'}, not efa; "
            "check that the pod asks for vpc.amazonaws.com/efa and that the image has one libfabric"
        )
    if re.search(r"via NET/Socket", log):
        faults.append("a channel goes via NET/Socket; check the security group, which must admit itself both ways")
    return faults


def measure(device: torch.device, *, size_bytes: int, repetitions: int) -> float:
    """Seconds of one all-reduce of this size, the mean of some, after the sum has been found right."""
    values = torch.ones(size_bytes // 4, device=device)
    dist.all_reduce(values)
    if not bool((values == dist.get_world_size()).all()):
        raise ArithmeticError("an all-reduce of ones gave another sum than the number of ranks")
    values.zero_()
    for _ in range(WARM_UPS):
        dist.all_reduce(values)
    _wait(device)
    begun = time.perf_counter()
    for _ in range(repetitions):
        dist.all_reduce(values)
    _wait(device)
    return (time.perf_counter() - begun) / repetitions


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    dist.barrier()


def main(arguments: Sequence[str]) -> int:
    """Run this rank."""
    parser = argparse.ArgumentParser(prog="python -m trainer.fabric_check", description=__doc__, allow_abbrev=False)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu has no EFA and checks the sum")
    parser.add_argument("--mebibytes", type=int, default=8192, help="size of the buffer that is reduced")
    parser.add_argument("--repetitions", type=int, default=20, help="all-reduces that are timed")
    parser.add_argument("--least-gb-per-second", type=float, help="bus bandwidth to reach; without it, none is asked")
    options = parser.parse_args(arguments)
    local_rank = int(os.environ["LOCAL_RANK"])
    log = Path(f"/tmp/nccl-{os.getpid()}.log")  # noqa: S108, a container's own folder
    if options.device == "cuda":
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        os.environ["NCCL_DEBUG_FILE"] = str(log)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    try:
        size_bytes = options.mebibytes * MIB
        seconds = measure(device, size_bytes=size_bytes, repetitions=options.repetitions)
        reached = bus_bandwidth(size_bytes=size_bytes, seconds=seconds, world_size=dist.get_world_size())
        faults = []
        if options.device == "cuda":
            faults += transport_faults(log.read_text(encoding="utf-8", errors="replace"))
            faults += _memory_faults()
        if dist.get_rank() == 0:
            print(
                f"all-reduce of {options.mebibytes} MiB over {dist.get_world_size()} ranks: {seconds * 1e3:.2f} ms, "
                f"bus bandwidth {reached:.1f} GB/s",
                flush=True,
            )
        if options.least_gb_per_second is not None and reached < options.least_gb_per_second:
            faults.append(
                f"bus bandwidth {reached:.1f} GB/s is below the published {options.least_gb_per_second:g}; "
                "check each node alone against another"
            )
        if local_rank == 0:
            for fault in faults:
                print(f"{os.uname().nodename}: {fault}", file=sys.stderr, flush=True)
        # All ranks end alike, since the operator calls a job a success as soon as one worker is.
        total = torch.tensor(len(faults), device=device)
        dist.all_reduce(total)
        return 1 if int(total) else 0
    finally:
        dist.destroy_process_group()


def _memory_faults() -> list[str]:
    try:
        check_locked_memory(RDMA_INTERFACES)
    except ConfigError as error:
        return [str(error)]
    return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
