"""LocalConfig: the platform that is this machine, for the demo: no stacks, no GPUs, the same charts and trainer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from config.job import JobConfig, MountPath, TrainingJob
from trainer.config import Model


class LocalStorageConfig(Model):
    """A folder of the machine in place of the file system."""

    host_path: str = Field(pattern=r"^/", description="Folder of the machine that workers share.")
    mount_path: MountPath = Field("/fsx", description="Where pods find it: one folder below the root.")


class LocalJobReference(Model):
    """A job that this machine runs, and with how many worker replicas of one process."""

    job: str = Field(min_length=1, description="Name of a file in config/jobs/, or a path from the platform file.")
    nodes: int = Field(gt=0, description="Worker replicas, each with one process on the CPU.")


class LocalConfig(Model):
    """A platform without an AWS account. What needs one is not accepted here."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{1,30}[a-z0-9]$")] = Field(
        description="Name of the platform."
    )
    storage: LocalStorageConfig = Field(description="The shared folder.")
    jobs: tuple[LocalJobReference, ...] = Field(strict=False, min_length=1, description="Training jobs.")

    def place(self, name: str, job: JobConfig, reference: LocalJobReference) -> TrainingJob:
        """A job on this machine's CPU."""
        return TrainingJob(
            name=name,
            node_group=None,
            instance=None,
            nodes=reference.nodes,
            processes_per_node=1,
            rendezvous=job.rendezvous,
            image=job.image,
            checkpoint_seconds=1,
            trainer=job.trainer_on(
                name=name,
                mount_path=self.storage.mount_path,
                device="cpu",
                peak_tflops_per_gpu=None,
                # Workers of one machine would want the same port.
                metrics_port=None,
            ),
        )
