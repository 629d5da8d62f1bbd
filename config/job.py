"""JobConfig: one training run as a file in `config/jobs/` describes it, and TrainingJob: that run on a platform."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, field_validator

from config.instances import InstanceFacts
from trainer.config import ConfigError, Device, Model, TrainerConfig, read_yaml, validate
from trainer.schedule import gradient_accumulation_steps, mesh_axes

Rendezvous = Literal["etcd", "c10d", "static"]

# fp32 masters and gradients of 4 bytes each, and AdamW's two fp32 moments.
STATE_BYTES_PER_PARAMETER = 16

# `<job>-worker-127` names a Service, which is a DNS label of 63 characters.
NAME_PATTERN = r"^[a-z]([a-z0-9-]{0,48}[a-z0-9])?$"


# Folders of an image, or of the pod, that a mount would hide.
TAKEN_FOLDERS = (
    "bin|boot|dev|etc|home|lib|lib32|lib64|libx32|media|mnt|opt|proc|root|run|sbin|scratch|srv|sys|tmp|usr|var"
)


def _hides_nothing(path: str) -> str:
    if re.fullmatch(f"/({TAKEN_FOLDERS})", path):
        raise ValueError("is a folder that the image or the pod needs; use another, such as /fsx")
    return path


MountPath = Annotated[str, StringConstraints(pattern=r"^/[a-z0-9_-]+$"), AfterValidator(_hides_nothing)]


class JobConfig(Model):
    """One training run, told without a platform: model, data, batches, length, and how its workers meet."""

    rendezvous: Rendezvous = Field("etcd", description="Where the elastic agents meet; `static` is not elastic.")
    image: str | None = Field(None, description="Image to run in place of the platform's own, by digest or unique tag.")
    trainer: TrainerConfig = Field(description="The trainer's options.")

    @field_validator("trainer")
    @classmethod
    def _platform_options_are_left_to_the_platform(cls, value: TrainerConfig) -> TrainerConfig:
        if given := {"shared_dir", "device", "peak_tflops_per_gpu", "metrics_port"} & value.model_fields_set:
            name = sorted(given)[0]
            raise ValueError(f"{name} follows from the platform, got {getattr(value, name)!r}; remove it from the job")
        return value

    @field_validator("image")
    @classmethod
    def _image_cannot_change_behind_the_job(cls, value: str | None) -> str | None:
        if value is None or "@sha256:" in value:
            return value
        _, colon, tag = value.rpartition("/")[2].partition(":")
        if not colon or tag == "latest":
            raise ValueError("must name a digest or a tag other than latest; add @sha256:… or :TAG")
        return value

    @classmethod
    def load(cls, path: Path) -> Self:
        """The job in a YAML file.

        Raises:
            ConfigError: the file is not what this class accepts.
        """
        return validate(cls, read_yaml(path), source=str(path))

    def trainer_on(
        self,
        *,
        name: str,
        mount_path: str,
        device: Device,
        peak_tflops_per_gpu: float | None,
        metrics_port: int | None,
    ) -> TrainerConfig:
        """The trainer's options, completed with what only the platform knows. The run is the job's unless it says."""
        run = self.trainer.run if "run" in self.trainer.model_fields_set else name
        return self.trainer.model_copy(
            update={
                "shared_dir": mount_path,
                "run": run,
                "device": device,
                "peak_tflops_per_gpu": peak_tflops_per_gpu,
                "metrics_port": metrics_port,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """A job on its platform: what a chart renders. `instance` is None on the platform that is this machine."""

    name: str
    node_group: str | None
    instance: InstanceFacts | None
    nodes: int
    processes_per_node: int
    rendezvous: Rendezvous
    image: str | None
    checkpoint_seconds: int
    trainer: TrainerConfig

    @property
    def world_size(self) -> int:
        """Ranks of the run."""
        return self.nodes * self.processes_per_node

    def check(self) -> None:
        """Refuse what cannot run with this many ranks on this instance type.

        Raises:
            ConfigError: the batch or the mesh does not divide, or the state cannot fit.
        """
        trainer = self.trainer
        gradient_accumulation_steps(
            global_batch_size=trainer.global_batch_size,
            micro_batch_size=trainer.micro_batch_size,
            world_size=self.world_size,
        )
        axes = mesh_axes(trainer.strategy, world_size=self.world_size, shard_group_size=trainer.shard_group_size)
        if self.instance is None:
            return
        sharing_ranks = axes["dp_shard"]
        needed_gib = trainer.model_parameters * STATE_BYTES_PER_PARAMETER / sharing_ranks / 2**30
        gpu_gib = self.instance.gpu_memory_mib / 1024
        if needed_gib > gpu_gib:
            raise ConfigError(
                f"nodes: the state of {trainer.model_parameters:,} parameters takes {needed_gib:.0f} GiB on each "
                f"GPU of a shard group of {sharing_ranks}, and a {self.instance.gpu} has {gpu_gib:.0f}; "
                f"got {self.nodes} nodes with {trainer.strategy}; use more nodes, a larger shard group or a larger GPU"
            )
