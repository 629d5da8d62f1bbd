"""`make fabric-check`: an all-reduce over the nodes of a group, which fails unless EFA carries it at its speed."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import yaml

from charts.fabric_check import NAME, fabric_check_job
from charts.outputs import PlatformOutputs
from config.loader import chosen_path, load_config
from config.names import TRAINING_NAMESPACE
from config.platform import NodeGroupConfig, PlatformConfig
from operations.kubectl import check_cluster, kubectl
from trainer.config import ConfigError

OUTPUTS = Path("outputs.json")
MANIFEST = Path("build/fabric-check.yaml")
POLL_SECONDS = 5.0
# The image is pulled first, which takes most of it.
ENDS_WITHIN_SECONDS = 1800.0


def main() -> int:
    """Entry of `make fabric-check`."""
    parser = argparse.ArgumentParser(prog="python -m operations.fabric_check", description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", help="platform file")
    parser.add_argument("--group", help="node group; by default the first that has two nodes")
    parser.add_argument("--nodes", help="nodes to take; by default all that the group has now")
    arguments = parser.parse_args()
    try:
        config = load_config(chosen_path(flag=arguments.config)).config
        if not isinstance(config, PlatformConfig):
            raise ConfigError(f"{config.name} is this machine and has no fabric; name a platform on AWS")
        group = chosen_group(config, arguments.group)
        nodes = chosen_nodes(group, arguments.nodes)
        outputs = PlatformOutputs.load(OUTPUTS, config.name)
        if outputs.is_sample:
            raise ConfigError(f"{OUTPUTS}: is a sample, which names no image; deploy first (npx cdk deploy --all)")
        check_cluster(config)
        job = fabric_check_job(group, nodes=nodes, image=outputs.trainer_image_uri)
        MANIFEST.parent.mkdir(exist_ok=True)
        MANIFEST.write_text(yaml.safe_dump(job, sort_keys=False), encoding="utf-8")
        print(f"checking {nodes} nodes of {group.name} ({MANIFEST})", flush=True)
        kubectl("delete", "--ignore-not-found", f"--filename={MANIFEST}")
        kubectl("apply", "--server-side", f"--filename={MANIFEST}")
        try:
            verdict = ended()
            pods = f"--selector=training.kubeflow.org/job-name={NAME}"
            log = kubectl("logs", f"--namespace={TRAINING_NAMESPACE}", pods, "--tail=-1", "--prefix")
        finally:
            # The nodes are whole only for one job.
            kubectl("delete", "--ignore-not-found", f"--filename={MANIFEST}")
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    print(log.rstrip())
    if verdict == "Succeeded":
        print(f"EFA carries the traffic of {group.name}")
        return 0
    print(f"the check of {group.name} ended as {verdict}; its faults are above", file=sys.stderr)
    return 1


def chosen_group(config: PlatformConfig, name: str | None) -> NodeGroupConfig:
    """The node group to check.

    Raises:
        ConfigError: there is none of that name.
    """
    if not name:
        return max(config.node_groups, key=lambda group: group.desired_size >= 2)
    group = config.node_group(name)
    if group is None:
        known = ", ".join(group.name for group in config.node_groups)
        raise ConfigError(f"--group: must be one of {known}, got {name}; name a node group of the platform file")
    return group


def chosen_nodes(group: NodeGroupConfig, text: str | None) -> int:
    """How many nodes to check.

    Raises:
        ConfigError: it is no number, there is nothing between fewer than two, or the group has not as many.
    """
    nodes = group.desired_size if not text else int(text) if text.isascii() and text.isdigit() else 0
    if not 2 <= nodes <= group.desired_size:
        raise ConfigError(
            f"--nodes: must be 2 to {group.desired_size}, the desired_size of node group {group.name}, "
            f"got {text or nodes}; traffic needs two nodes, so scale the group up or name fewer"
        )
    return nodes


def ended() -> str:
    """How the job ended, once it has.

    Raises:
        ConfigError: it did not in time; its pods may wait for nodes.
    """
    begun = time.monotonic()
    while time.monotonic() - begun < ENDS_WITHIN_SECONDS:
        text = kubectl("get", f"pytorchjobs.kubeflow.org/{NAME}", f"--namespace={TRAINING_NAMESPACE}", "--output=json")
        # Every condition that was ever met stays; the first is always Created.
        for condition in json.loads(text).get("status", {}).get("conditions", []):
            if condition["type"] in ("Succeeded", "Failed") and condition["status"] == "True":
                return str(condition["type"])
        time.sleep(POLL_SECONDS)
    raise ConfigError(
        f"{NAME}: did not end in {ENDS_WITHIN_SECONDS:.0f} s; look why its pods wait: "
        f"kubectl describe pods --namespace={TRAINING_NAMESPACE}"
    )


if __name__ == "__main__":
    sys.exit(main())
