"""Who this process is among the others, and how they agree."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from trainer.config import ConfigError, TrainerConfig
from trainer.endings import InterruptedRunError, StopSignal

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")

# Where Linux lists the interfaces with remote direct memory access, EFA's among them.
RDMA_INTERFACES = Path("/sys/class/infiniband")

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process's place, its device, and a gloo group for small facts that live in host memory."""

    rank: int
    local_rank: int
    world_size: int
    node_rank: int
    device: torch.device
    stop: StopSignal
    control: dist.ProcessGroup

    @classmethod
    def join(cls, config: TrainerConfig, stop: StopSignal) -> Ranks:
        """Join the others, as torchrun or whoever started this process has laid down in a sound environment."""
        local_rank = int(os.environ["LOCAL_RANK"])
        device = torch.device("cuda", local_rank) if config.device == "cuda" else torch.device("cpu")
        store, rank, world_size = _meeting_place()
        if config.device == "cuda":
            torch.cuda.set_device(device)
            dist.init_process_group("nccl", store=store, rank=rank, world_size=world_size, device_id=device)
        else:
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        return cls(
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
            node_rank=int(os.environ.get("GROUP_RANK", "0")),
            device=device,
            stop=stop,
            control=dist.new_group(backend="gloo"),
        )

    def sums(self, *values: int) -> list[int]:
        """Each value summed over all ranks."""
        total = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(total, group=self.control)
        return [int(value) for value in total]

    def end_if_asked(self, *values: int) -> list[int]:
        """Each value summed over all ranks, unless one of them was asked to end.

        Raises:
            InterruptedRunError: SIGTERM has reached a rank; all ranks raise it at the same call.
        """
        *sums, asked = self.sums(*values, int(self.stop.is_set))
        if asked:
            raise InterruptedRunError
        return sums

    def agreed(self, work: Callable[[], Result]) -> Result:
        """What `work` returns on this rank; or on all ranks the first one's mistake, so that none waits for it.

        Raises:
            ConfigError: `work` raised it on a rank.
        """
        result: list[Result] = []
        mistake = None
        try:
            result.append(work())
        except ConfigError as error:
            mistake = str(error)
        mistakes: list[str | None] = [None] * self.world_size
        dist.all_gather_object(mistakes, mistake, group=self.control)
        for said in mistakes:
            if said is not None:
                raise ConfigError(said)
        return result[0]

    def first_does(self, work: Callable[[], None]) -> None:
        """Have rank 0 do what may take hours, while all ranks stay in touch: no time-out, no deafness to SIGTERM.

        Raises:
            ConfigError: `work` raised it.
            InterruptedRunError: SIGTERM has reached a rank. The work is abandoned where it stands.
        """
        failures: list[Exception] = []

        def recorded() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001, raised again below
                failures.append(error)

        # A daemon, or the process would not end before the work.
        worker = threading.Thread(target=recorded, daemon=True)
        if self.rank == 0:
            worker.start()
        while not self.end_if_asked(int(self.rank == 0 and not worker.is_alive()))[0]:
            time.sleep(0.05)

        def raise_failure() -> None:
            if failures:
                raise failures[0]

        self.agreed(raise_failure)


def _meeting_place() -> tuple[Store, int, int]:
    """The store in which ranks find one another, this rank, and the world size."""
    store, rank, world_size = next(rendezvous("env://"))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # torchrun then keeps one store over its restarts, and in it the addresses of ranks that are gone. torch 2.13
        # takes each restart's store for a new one, and its ranks would wait for the dead:
        # https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/rendezvous.py
        store = PrefixStore(f"restart {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    return store, rank, world_size


def check_environment(config: TrainerConfig) -> None:
    """Refuse to start where no place among ranks is given, or the node is not fit to train on.

    Raises:
        ConfigError: one of the two.
    """
    remedy = (
        f"start the trainer by torchrun --nproc-per-node=N -m trainer …, or set {', '.join(VARIABLES)} for every rank"
    )
    for name in VARIABLES:
        if name not in os.environ:
            raise ConfigError(f"environment: {name} is not set; {remedy}")
    for name in NUMBERS:
        if not os.environ[name].isdecimal():
            raise ConfigError(f"environment: {name} must be a whole number, got {os.environ[name]!r}; {remedy}")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank >= world_size:
        raise ConfigError(f"environment: RANK must be below WORLD_SIZE {world_size}, got {rank}; {remedy}")
    if config.device == "cuda":
        _check_gpu(int(os.environ["LOCAL_RANK"]))
        check_locked_memory(RDMA_INTERFACES)


def _check_gpu(local_rank: int) -> None:
    """Refuse a node without this rank's GPU, or with one that cannot add up."""
    if not torch.cuda.is_available() or torch.cuda.device_count() <= local_rank:
        raise ConfigError(
            f"device: cuda needs {local_rank + 1} GPUs on this node, and torch sees {torch.cuda.device_count()}; "
            "run on a GPU node, or say device: cpu"
        )
    ones = torch.ones(1024, 1024, device=torch.device("cuda", local_rank), dtype=torch.bfloat16)
    # Powers of two, exact in bf16.
    if not bool((ones @ ones == 1024).all()):
        raise ConfigError(
            f"device: GPU {local_rank} of this node multiplies matrices wrongly; "
            "cordon the node and read its DCGM metrics and kernel log"
        )


def check_locked_memory(interfaces: Path) -> None:
    """Refuse a limit on locked memory where EFA is: libfabric then fails with -12, in the middle of a run.

    https://github.com/aws/aws-ofi-nccl/issues/141

    Raises:
        ConfigError: there are interfaces, and the limit is not unlimited.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if interfaces.is_dir() and any(interfaces.iterdir()) and limit != resource.RLIM_INFINITY:
        raise ConfigError(
            f"memlock: must be unlimited on a node with EFA interfaces, got {limit} bytes; "
            "start the container runtime with LimitMEMLOCK=infinity"
        )
