"""What no folder can see alone: that imports point one way, and that what one side says the other side means."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.outputs import PlatformOutputs
from charts.pytorch_job import EtcdAddress, job_spec
from config.instances import INSTANCES
from config.names import EFA_RESOURCE, FSX_STARTUP_TAINT, GPU_RESOURCE, STACKS
from config.sizing import HUGEPAGES_MIB, NODE_AGENTS_CPUS, NODE_AGENTS_MEMORY_MIB
from tests.charts.manifest_checks import Pod, pods
from tests.charts.synthesis import SAMPLE_OUTPUTS, Manifests
from tests.synthesis import PLATFORMS_FOLDER, SHIPPED, Synthesized
from trainer.config import TrainerConfig

REPOSITORY = PLATFORMS_FOLDER.parent.parent

# Each part of the repository, and what of it and of the two frameworks it may import.
MAY_IMPORT = {
    "trainer": {"trainer"},
    "config": {"config", "trainer"},
    "stacks": {"stacks", "config", "trainer", "aws_cdk"},
    "charts": {"charts", "config", "trainer", "cdk8s"},
    "app.py": {"stacks", "config", "trainer", "aws_cdk"},
    "operations": {"operations", "charts", "config", "trainer"},
    "bench": {"bench", "operations", "config", "trainer"},
}
WATCHED = {part for part in MAY_IMPORT if part != "app.py"} | {"app", "aws_cdk", "cdk8s", "tests"}


def imported(path: Path) -> set[str]:
    """The top-level packages that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports by dots hide where they point"
            found.add(str(node.module).partition(".")[0])
    return found


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_imports_point_one_way(part: str) -> None:
    place = REPOSITORY / part
    for path in [place] if place.suffix else sorted(place.rglob("*.py")):
        assert imported(path) & WATCHED <= MAY_IMPORT[part], path


def test_every_folder_with_code_has_its_direction() -> None:
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    folders = {path.partition("/")[0] for path in tracked.stdout.split()}
    assert folders - {"tests"} <= MAY_IMPORT.keys()


def test_what_synth_uses_of_the_trainer_starts_without_torch() -> None:
    modules = ["config", "schedule", "order", "tokenize", "records", "run_id"]
    program = f"import sys, {', '.join(f'trainer.{name}' for name in modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=False).returncode == 0


# From config to cluster: the worker and its node


def mebibytes(quantity: str) -> float:
    """Memory in MiB."""
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", quantity).groups()  # type: ignore[union-attr]
    return int(number) * {"Mi": 1, "Gi": 1024}[unit]


def cpus(quantity: str) -> float:
    """CPUs, of which a thousandth is written `m`."""
    return int(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)


def requested(pod: Pod, name: str, unit: Callable[[str], float]) -> float:
    """What the scheduler counts: the sum over containers, or the largest init container if that is more."""
    of = [unit(each["resources"]["requests"].get(name, "0Mi" if unit is mebibytes else "0")) for each in pod.containers]
    init = len(pod.spec.get("initContainers", []))
    return max([sum(of[init:]), *of[:init]])


@pytest.fixture(scope="module", params=INSTANCES)
def worker(request: pytest.FixtureRequest, block: Manifests) -> tuple[str, Pod]:
    """The worker of a job on each instance type."""
    facts = INSTANCES[request.param]
    job = replace(block.platform.jobs[0], instance=facts, processes_per_node=facts.gpus_per_node)
    spec = job_spec(job, image="i:1", etcd=EtcdAddress(host="etcd", port=2379), rendezvous_id="r")
    manifest = {"kind": "PyTorchJob", "metadata": {"name": job.name, "namespace": "training"}, "spec": spec}
    (pod,) = pods([manifest])
    return request.param, pod


def test_a_worker_claims_every_gpu_and_every_efa_interface_of_its_node(worker: tuple[str, Pod]) -> None:
    facts, limits = INSTANCES[worker[0]], worker[1].spec["containers"][0]["resources"]["limits"]
    assert int(limits[GPU_RESOURCE]) == facts.gpus_per_node
    assert int(limits[EFA_RESOURCE]) == facts.efa_interfaces_per_node


def test_a_worker_and_the_agents_of_its_node_fit_on_it(worker: tuple[str, Pod], block: Manifests) -> None:
    """One CPU more than there is, and the job waits for ever without a condition."""
    facts, pod = INSTANCES[worker[0]], worker[1]
    agents = [each for each in pods(block.objects) if each.kind == "DaemonSet"]
    # The kubelet keeps less than one CPU of these sizes.
    assert requested(pod, "cpu", cpus) + sum(requested(each, "cpu", cpus) for each in agents) <= facts.vcpus - 1
    memory = requested(pod, "memory", mebibytes) + sum(requested(each, "memory", mebibytes) for each in agents)
    assert memory <= facts.allocatable_memory_mib - HUGEPAGES_MIB
    assert requested(pod, "hugepages-2Mi", mebibytes) <= HUGEPAGES_MIB


def test_a_worker_leaves_little_of_its_node_unused(worker: tuple[str, Pod]) -> None:
    facts, pod = INSTANCES[worker[0]], worker[1]
    assert requested(pod, "cpu", cpus) >= 0.8 * facts.vcpus
    assert requested(pod, "memory", mebibytes) >= 0.9 * facts.allocatable_memory_mib


def test_our_agents_leave_half_of_their_share_to_those_of_the_add_ons(block: Manifests) -> None:
    agents = [each for each in pods(block.objects) if each.kind == "DaemonSet"]
    assert agents
    assert sum(requested(each, "cpu", cpus) for each in agents) <= NODE_AGENTS_CPUS / 2
    assert sum(requested(each, "memory", mebibytes) for each in agents) <= NODE_AGENTS_MEMORY_MIB / 2


def test_processes_of_a_pod_share_out_its_gpus_and_cpus(manifests: Manifests) -> None:
    for job in manifests.platform.jobs:
        spec = manifests.one("PyTorchJob", job.name)["spec"]
        (pod,) = pods([manifests.one("PyTorchJob", job.name)])
        limits = pod.spec["containers"][0]["resources"]["limits"]
        assert spec["nprocPerNode"] == limits.get(GPU_RESOURCE, "1")
        threads = next(e["value"] for e in pod.spec["containers"][0]["env"] if e["name"] == "OMP_NUM_THREADS")
        assert int(threads) * int(spec["nprocPerNode"]) <= cpus(limits["cpu"])


# Between stacks and charts: labels, taints, interfaces, outputs


def node_groups(platform: Synthesized) -> Iterator[dict[str, Any]]:
    """The properties of every node group that the stacks make."""
    return (group["Properties"] for _, group in platform.every("AWS::EKS::Nodegroup"))


def fits(pod: Pod, group: dict[str, Any]) -> bool:
    """Whether pods may start on nodes of this group, once its start-up taint is gone."""
    tolerations = pod.spec.get("tolerations", [])
    return pod.spec.get("nodeSelector", {}).items() <= group["Labels"].items() and all(
        any(
            each.get("key", taint["Key"]) == taint["Key"]
            and each.get("effect", taint["Effect"]) == {"NO_SCHEDULE": "NoSchedule"}.get(taint["Effect"])
            for each in tolerations
        )
        or {"operator": "Exists"} in tolerations
        for taint in group.get("Taints", [])
        if taint["Key"] != FSX_STARTUP_TAINT
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_every_pod_has_the_nodes_that_it_is_meant_for(
    name: str, shipped: Callable[[str], Synthesized], manifests_of: Callable[[str], Manifests]
) -> None:
    groups = list(node_groups(shipped(name)))
    gpu = [group for group in groups if group.get("Taints")]
    system = [group for group in groups if not group.get("Taints")]
    assert gpu
    assert system
    for pod in pods(manifests_of(name).objects):
        match pod.kind:
            case "DaemonSet":
                assert [fits(pod, group) for group in groups] == [group in gpu for group in groups], pod.owner
            case "PyTorchJob":
                assert [group for group in groups if fits(pod, group)] in [[group] for group in gpu], pod.owner
            case _:
                assert [group for group in groups if fits(pod, group)] == system, pod.owner


@pytest.mark.parametrize("name", SHIPPED)
def test_a_worker_asks_for_as_many_interfaces_as_the_launch_template_of_its_nodes_has(
    name: str, shipped: Callable[[str], Synthesized], manifests_of: Callable[[str], Manifests]
) -> None:
    with_efa = {
        sum(each.get("InterfaceType") in ("efa", "efa-only") for each in data.get("NetworkInterfaces", []))
        for _, template in shipped(name).every("AWS::EC2::LaunchTemplate")
        for data in [template["Properties"]["LaunchTemplateData"]]
    } - {0}
    asked = {
        int(pod.spec["containers"][0]["resources"]["limits"][EFA_RESOURCE])
        for pod in pods(manifests_of(name).objects)
        if pod.kind == "PyTorchJob"
    }
    assert asked == with_efa


def test_charts_know_the_stacks_that_there_are(platform: Synthesized) -> None:
    assert set(platform.templates) == set(STACKS)


def test_the_stacks_output_what_charts_read_and_the_sample_has_their_form(platform: Synthesized) -> None:
    made = {key for template in platform.templates.values() for key in template.get("Outputs", {})}
    read = {f.name.replace("_", " ").title().replace(" ", "") for f in fields(PlatformOutputs) if f.type == "str"}
    sample = yaml.safe_load(SAMPLE_OUTPUTS.read_text(encoding="utf-8"))["sample"]
    assert read <= made
    assert read == sample.keys()


# Between charts and the trainer: one TrainerConfig


def test_the_trainer_reads_in_the_pod_what_the_platform_meant(manifests: Manifests, tmp_path: Path) -> None:
    for job in manifests.platform.jobs:
        (text,) = manifests.one("ConfigMap", f"{job.name}-options")["data"].values()
        file = tmp_path / "config.yaml"
        file.write_text(text, encoding="utf-8")
        assert TrainerConfig.load(file) == job.trainer


def test_a_pod_mounts_the_volume_where_the_trainer_looks_and_serves_metrics_where_it_listens(
    manifests: Manifests,
) -> None:
    for job in manifests.platform.jobs:
        (pod,) = pods([manifests.one("PyTorchJob", job.name)])
        (container,) = pod.spec["containers"]
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        (claim,) = (each["name"] for each in pod.spec["volumes"] if "persistentVolumeClaim" in each)
        assert mounts[claim] == job.trainer.shared_dir
        assert [port["containerPort"] for port in container["ports"]] == [
            port for port in [job.trainer.metrics_port] if port is not None
        ]
