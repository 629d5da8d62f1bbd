"""Reads the synthesized manifests, and says what the training operator would add to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]


class Manifests:
    """Every object of a folder of manifests, found by kind and name."""

    def __init__(self, folder: Path) -> None:
        self.objects: list[Object] = [
            document
            for path in sorted(folder.glob("*.yaml"))
            for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
            if document
        ]

    def find(self, kind: str, name: str | None = None) -> Object:
        """The one object of that kind, and of that name where several share the kind."""
        found = [o for o in self.objects if o["kind"] == kind and name in (None, o["metadata"]["name"])]
        assert len(found) == 1, f"{len(found)} objects of kind {kind} and name {name}"
        return found[0]


def operator_environment(job: Object) -> dict[str, str]:
    """What training operator v1.9.4 adds to every container of an elastic PyTorchJob.

    https://github.com/kubeflow/trainer/blob/v1.9.4/pkg/controller.v1/pytorch/elastic.go
    """
    spec, elastic = job["spec"], job["spec"]["elasticPolicy"]
    environment = {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": spec["nprocPerNode"],
        "PET_NNODES": f"{elastic['minReplicas']}:{elastic['maxReplicas']}",
        "PET_RDZV_BACKEND": elastic["rdzvBackend"],
        "PET_RDZV_ENDPOINT": f"{elastic['rdzvHost']}:{elastic['rdzvPort']}",
        "PET_RDZV_ID": elastic["rdzvId"],
        "PET_MAX_RESTARTS": str(elastic["maxRestarts"]),
    }
    if settings := elastic.get("rdzvConf"):
        environment["PET_RDZV_CONF"] = ",".join(f"{item['key']}={item['value']}" for item in settings)
    return environment
