"""kubectl, pointed at the platform's cluster, and the manifests that were synthesized for it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from config.local import LocalConfig
from config.names import SAMPLE_ANNOTATION
from config.platform import PlatformConfig
from trainer.config import ConfigError

MANIFESTS = Path("dist")
JOB_FILES = "????-job-*.k8s.yaml"

Object = dict[str, Any]


def check_cluster(config: PlatformConfig | LocalConfig) -> None:
    """Refuse to talk to another cluster than the platform's.

    Raises:
        ConfigError: there is no kubectl, or it points elsewhere.
    """
    if shutil.which("kubectl") is None:
        raise ConfigError("kubectl: is not on PATH; install it: https://kubernetes.io/docs/tasks/tools/")
    if isinstance(config, LocalConfig):
        return
    name = config.cluster.existing.name if config.cluster.existing else config.name
    # `aws eks update-kubeconfig` names the cluster by its ARN, which ends in its name.
    cluster = kubectl("config", "view", "--minify", "--output=jsonpath={.clusters[0].name}").strip()
    if cluster.rpartition("/")[2] != name:
        raise ConfigError(
            f"kubectl: must point at cluster {name}, got {cluster or 'none'}; "
            f"run `aws eks update-kubeconfig --name {name} --region {config.region}`"
        )


def kubectl(*arguments: str) -> str:
    """What kubectl prints.

    Raises:
        ConfigError: it failed, with what it said.
    """
    done = subprocess.run(["kubectl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"kubectl {arguments[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def platform_files(config: PlatformConfig | LocalConfig) -> list[Path]:
    """The manifests of the platform, jobs left out, in the order of application.

    Raises:
        ConfigError: there are none, they are another platform's, or they were made from sample outputs.
    """
    files = sorted(set(MANIFESTS.glob("*.k8s.yaml")) - set(MANIFESTS.glob(JOB_FILES)))
    objects = [found for path in files for found in read_objects(path)]
    volumes = [found["metadata"]["name"] for found in objects if found["kind"] == "PersistentVolume"]
    if volumes != [f"{config.name}-shared"]:
        found = f"those of volume {volumes[0]}" if volumes else "none"
        raise ConfigError(f"{MANIFESTS}/: must hold the manifests of {config.name}, got {found}; run make synth first")
    refuse_samples(objects)
    return files


def read_objects(path: Path) -> list[Object]:
    """The objects in a manifest."""
    return [found for found in yaml.safe_load_all(path.read_text(encoding="utf-8")) if found]


def refuse_samples(objects: list[Object]) -> None:
    """Refuse objects that name a file system and an image which do not exist.

    Raises:
        ConfigError: one of them was made from sample outputs.
    """
    for found in objects:
        if SAMPLE_ANNOTATION in (found["metadata"].get("annotations") or {}):
            raise ConfigError(
                f"{MANIFESTS}/: {found['kind']} {found['metadata']['name']} was made from sample outputs; "
                "deploy first (npx cdk deploy --all), then run make synth again"
            )
