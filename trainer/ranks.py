"""Who this process is among the others, and how they talk."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainer.config import ConfigError, TrainerConfig

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process's place, its device, and a gloo group for small facts that live in host memory."""

    rank: int
    local_rank: int
    world_size: int
    node_rank: int
    device: torch.device
    control: dist.ProcessGroup

    @classmethod
    def join(cls, config: TrainerConfig) -> Ranks:
        """Join the others, as torchrun or whoever started this process has laid down in the environment.

        Raises:
            ConfigError: the environment names no place, or the machine has no such device.
        """
        check_environment(config)
        rank, world_size, local_rank = (int(os.environ[name]) for name in VARIABLES[:3])
        device = torch.device("cuda", local_rank) if config.device == "cuda" else torch.device("cpu")
        if config.device == "cuda":
            torch.cuda.set_device(device)
            dist.init_process_group("nccl", device_id=device)
        else:
            dist.init_process_group("gloo")
        return cls(
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
            node_rank=int(os.environ.get("GROUP_RANK", "0")),
            device=device,
            control=dist.new_group(backend="gloo"),
        )

    def sums(self, *values: int) -> list[int]:
        """Each value summed over all ranks."""
        total = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(total, group=self.control)
        return [int(value) for value in total]


def check_environment(config: TrainerConfig) -> None:
    """Refuse to start where no place among ranks is given or the device is absent.

    Raises:
        ConfigError: one of the two.
    """
    if missing := [name for name in VARIABLES if name not in os.environ]:
        raise ConfigError(
            f"environment: {missing[0]} is not set; start the trainer by torchrun --nproc-per-node=N -m trainer …, "
            f"or set {', '.join(VARIABLES)}"
        )
    if config.device == "cuda":
        wanted = int(os.environ["LOCAL_RANK"]) + 1
        if not torch.cuda.is_available() or torch.cuda.device_count() < wanted:
            raise ConfigError(
                f"device: cuda needs {wanted} GPUs on this node, and torch sees {torch.cuda.device_count()}; "
                "run on a GPU node, or say device: cpu"
            )
