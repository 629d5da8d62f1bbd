"""`python -m charts`, which `cdk8s synth` calls: a platform file and its outputs in, numbered manifests out."""

from __future__ import annotations

import argparse
import os
import sys
from itertools import pairwise
from pathlib import Path

import cdk8s

from charts.device_plugins import DevicePluginsChart
from charts.etcd import EtcdChart
from charts.namespaces import NamespacesChart
from charts.outputs import PlatformOutputs
from charts.pytorch_job import EtcdAddress, PyTorchJobChart
from charts.pytorch_job_crd import PyTorchJobDefinitionChart
from charts.storage import StorageChart, fsx_volume, host_volume
from charts.trainer_access import TrainerAccessChart
from charts.training_operator import TrainingOperatorChart
from config.loader import Platform, chosen_path, load_config
from config.names import (
    NODE_AGENTS_NAMESPACE,
    NODE_GROUP_LABEL,
    OPERATOR_NAMESPACE,
    SAMPLE_ANNOTATION,
    SYSTEM_NODE_GROUP,
    TRAINING_NAMESPACE,
)
from config.platform import PlatformConfig
from trainer.config import ConfigError

OUTPUTS = Path("outputs.json")
LOCAL_IMAGE = "training-platform/trainer:local"
LOCAL_CAPACITY_GIB = 10  # formal: a folder has the size of its disk


def build_charts(app: cdk8s.App, platform: Platform, outputs: PlatformOutputs | None) -> None:
    """Every chart of a platform, in the order of application. A local platform has no outputs."""
    config = platform.config
    if isinstance(config, PlatformConfig):
        assert outputs is not None, "a platform on AWS has outputs"
        namespaces = [OPERATOR_NAMESPACE, TRAINING_NAMESPACE, NODE_AGENTS_NAMESPACE]
        system_nodes = {NODE_GROUP_LABEL: SYSTEM_NODE_GROUP}
        volume = fsx_volume(
            file_system_id=outputs.file_system_id,
            dns_name=outputs.file_system_dns_name,
            mount_name=outputs.file_system_mount_name,
        )
        capacity, image = config.storage.capacity_gib, outputs.trainer_image_uri
        mirror = config.registry.mirror
        annotations = {SAMPLE_ANNOTATION: "true"} if outputs.is_sample else {}
    else:
        namespaces, system_nodes = [OPERATOR_NAMESPACE, TRAINING_NAMESPACE], None
        volume, capacity, image = host_volume(config.storage.host_path), LOCAL_CAPACITY_GIB, LOCAL_IMAGE
        mirror, annotations = None, {}

    NamespacesChart(app, "namespaces", names=namespaces)
    PyTorchJobDefinitionChart(app, "pytorchjob-crd")
    TrainingOperatorChart(
        app, "training-operator", namespace=OPERATOR_NAMESPACE, node_selector=system_nodes, mirror=mirror
    )
    etcd = EtcdChart(app, "etcd", namespace=TRAINING_NAMESPACE, node_selector=system_nodes, mirror=mirror)
    StorageChart(
        app,
        "storage",
        name=f"{config.name}-shared",
        namespace=TRAINING_NAMESPACE,
        capacity_gib=capacity,
        source=volume,
        annotations=annotations,
    )
    if isinstance(config, PlatformConfig):
        DevicePluginsChart(app, "device-plugins", namespace=NODE_AGENTS_NAMESPACE, region=config.region, mirror=mirror)
    TrainerAccessChart(app, "trainer-access", namespace=TRAINING_NAMESPACE)
    for job in platform.jobs:
        PyTorchJobChart(
            app,
            f"job-{job.name}",
            job=job,
            namespace=TRAINING_NAMESPACE,
            image=image,
            etcd=EtcdAddress(host=etcd.host, port=etcd.port),
            annotations=annotations,
        )
    # Files are numbered by dependency, and kubectl applies them by number.
    for earlier, later in pairwise(app.charts):
        later.add_dependency(earlier)


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output-dir: {folder} cannot be made ({error.strerror}); name another folder") from None


def main() -> int:
    """Synthesize, or say in one sentence why not."""
    parser = argparse.ArgumentParser(prog="python -m charts", description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", help="platform file, by default that of PLATFORM_CONFIG")
    parser.add_argument("--outputs", type=Path, default=OUTPUTS, help="outputs of the deployed stacks")
    # The cdk8s CLI hands its output folder down so.
    parser.add_argument("--output-dir", type=Path, default=Path(os.environ.get("CDK8S_OUTDIR", "dist")))
    arguments = parser.parse_args()
    folder = arguments.output_dir.absolute()
    try:
        platform = load_config(chosen_path(flag=arguments.config))
        outputs = None
        if isinstance(platform.config, PlatformConfig):
            outputs = PlatformOutputs.load(arguments.outputs, platform.config.name)
        _check_writable(folder)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    app = cdk8s.App(outdir=str(folder))
    build_charts(app, platform, outputs)
    # Another platform's manifests must not be applied with this one's.
    for stale in folder.glob("*.k8s.yaml"):
        stale.unlink()
    app.synth()
    return 0


if __name__ == "__main__":
    sys.exit(main())
