"""The worker replicas of a PyTorchJob as processes, in place of the training operator and the kubelet."""

from __future__ import annotations

import uuid

from operations.demo.machine import Machine, Process
from operations.demo.manifests import Object, operator_environment


class Workers:
    """The pods that the training operator would make of the job, as processes."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.job: Object = machine.manifests.find("PyTorchJob")
        worker = self.job["spec"]["pytorchReplicaSpecs"]["Worker"]
        self.pod: Object = worker["template"]["spec"]
        self.container: Object = next(c for c in self.pod["containers"] if c["name"] == "pytorch")
        # The API server gives every object a UID; the init container of each pod writes down that of its job.
        self.uid = str(uuid.uuid4())
        self.names = [f"{self.job['metadata']['name']}-worker-{index}" for index in range(worker["replicas"])]
        self.running = {name: self.start(name) for name in self.names}

    def start(self, name: str) -> Process:
        """Start one worker replica."""
        folders = self.machine.mount(name, self.pod)
        (folders["run-id"] / "uid").write_text(self.uid, encoding="utf-8")
        environment = operator_environment(self.job)
        # A pod reaches itself by its own name, which is a Service's.
        environment["PET_LOCAL_ADDR"] = "127.0.0.1"
        return self.machine.start(name, self.pod, self.container, environment)

    def kill(self, name: str) -> None:
        """Lose a worker replica with all its processes, as when its node dies."""
        self.running[name].kill()

    def replace(self, name: str) -> None:
        """Start another in the place of one that was lost."""
        self.running[name] = self.start(name)

    def statuses(self) -> dict[str, int | None]:
        """Exit status by name, None while it runs."""
        return {name: process.popen.poll() for name, process in self.running.items()}
