"""A job meets, restarts, saves and ends as torchrun, the operator and EFA demand, by each rendezvous."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import cdk8s
import pytest

from charts.pytorch_job import EtcdAddress, PyTorchJobChart
from config.job import Rendezvous, TrainingJob
from config.names import GPU_TAINT, HUGGING_FACE_SECRET, NODE_GROUP_LABEL
from tests.charts.manifest_checks import jobs_pass_the_operators_webhook
from tests.charts.synthesis import Manifests, Object

BY_EACH = pytest.mark.parametrize("rendezvous", ["etcd", "c10d", "static"])


def render(job: TrainingJob, *, image: str = "registry/trainer:1", sample: bool = False) -> list[Object]:
    """The objects of a job, by a chart of its own."""
    chart = PyTorchJobChart(
        cdk8s.Testing.app(),
        "job",
        job=job,
        namespace="training",
        image=image,
        etcd=EtcdAddress(host="etcd.example", port=2379),
        annotations={"sample": "true"} if sample else {},
    )
    objects: list[Object] = cdk8s.Testing.synth(chart)
    return objects


def spec_of(objects: list[Object]) -> Object:
    (found,) = (each for each in objects if each["kind"] == "PyTorchJob")
    spec: Object = found["spec"]
    return spec


def pod_of(objects: list[Object]) -> Object:
    replicas = spec_of(objects)["pytorchReplicaSpecs"]
    pod: Object = next(iter(replicas.values()))["template"]["spec"]
    return pod


def environment_of(objects: list[Object]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in pod_of(objects)["containers"][0]["env"] if "value" in each}


@pytest.fixture(scope="module")
def job(block: Manifests) -> TrainingJob:
    """Llama 2 7B on four p5.48xlarge nodes, meeting in etcd."""
    found = next(job for job in block.platform.jobs if job.name == "llama2-7b")
    assert (found.nodes, found.rendezvous) == (4, "etcd")
    return found


@pytest.fixture(scope="module")
def objects(job: TrainingJob) -> list[Object]:
    return render(job)


def test_agents_meet_in_etcd_by_the_backend_that_survives_two_hours(objects: list[Object]) -> None:
    policy = spec_of(objects)["elasticPolicy"]
    assert policy["rdzvBackend"] == "etcd-v2"
    assert (policy["rdzvHost"], policy["rdzvPort"]) == ("etcd.example", 2379)


def test_agents_meet_at_their_first_worker_by_c10d(job: TrainingJob) -> None:
    """The operator's default address is the Service of worker 0, which any other would have to repeat."""
    policy = spec_of(render(replace(job, rendezvous="c10d")))["elasticPolicy"]
    assert policy["rdzvBackend"] == "c10d"
    assert not {"rdzvHost", "rdzvPort"} & policy.keys()


@pytest.mark.parametrize(("nodes", "replicas"), [(4, {"Master": 1, "Worker": 3}), (1, {"Master": 1})])
def test_a_static_job_has_a_master_whose_address_the_operator_tells(
    job: TrainingJob, nodes: int, replicas: dict[str, int]
) -> None:
    spec = spec_of(render(replace(job, rendezvous="static", nodes=nodes)))
    assert "elasticPolicy" not in spec
    assert {kind: each["replicas"] for kind, each in spec["pytorchReplicaSpecs"].items()} == replicas


@pytest.mark.parametrize("rendezvous", ["etcd", "c10d"])
def test_an_elastic_job_keeps_its_size_and_is_scaled_by_nobody(job: TrainingJob, rendezvous: Rendezvous) -> None:
    """An autoscaler on CPU load restarts GPU workers, and late ones never join."""
    spec = spec_of(render(replace(job, rendezvous=rendezvous)))
    policy = spec["elasticPolicy"]
    assert policy["minReplicas"] == policy["maxReplicas"] == job.nodes
    assert spec["pytorchReplicaSpecs"]["Worker"]["replicas"] == job.nodes
    assert not {"metrics", "nProcPerNode", "rdzvConf", "standalone"} & policy.keys()


@BY_EACH
def test_the_operators_webhook_would_let_it_in(job: TrainingJob, rendezvous: Rendezvous) -> None:
    for nodes in (1, 4):
        assert jobs_pass_the_operators_webhook(render(replace(job, rendezvous=rendezvous, nodes=nodes))) == []


def test_the_rendezvous_is_named_after_everything_that_the_job_is(job: TrainingJob) -> None:
    def name(job: TrainingJob, image: str = "registry/trainer:1") -> str:
        found: str = spec_of(render(job, image=image))["elasticPolicy"]["rdzvId"]
        return found

    first = name(job)
    assert first.startswith(f"{job.name}-")
    assert first == name(replace(job))
    longer = job.trainer.model_copy(update={"epochs": 4})
    others = [
        name(replace(job, trainer=longer)),
        name(replace(job, nodes=2)),
        name(replace(job, node_group="other")),
        name(replace(job, rendezvous="c10d")),
        name(replace(job, name="other")),
        name(job, image="registry/trainer:2"),
    ]
    assert len({first, *others}) == 1 + len(others)


@BY_EACH
def test_every_submission_meets_under_an_id_of_its_own(job: TrainingJob, rendezvous: Rendezvous) -> None:
    """A rendezvous that ended stays closed for its id, so the init container fetches what is new each time."""
    pod = pod_of(render(replace(job, rendezvous=rendezvous)))
    (init,), (trainer,) = pod["initContainers"], pod["containers"]
    *program, file = init["command"]
    assert program == ["python", "-m", "trainer.run_id"]
    command = trainer["command"][-1]
    assert f'--rdzv-id="{job.name}-' in command
    assert f"$(cat {file})" in command
    folder = file.rpartition("/")[0]
    written, read = (
        next(mount for mount in container["volumeMounts"] if mount["mountPath"] == folder)
        for container in (init, trainer)
    )
    assert written["name"] == read["name"]
    assert "readOnly" not in written


def test_torchrun_takes_the_place_of_the_shell(objects: list[Object]) -> None:
    """As a shell's child it has a new number at each restart, and its old seat must expire first."""
    shell = pod_of(objects)["containers"][0]["command"]
    assert shell[:2] == ["/bin/sh", "-c"]
    assert shell[2].startswith("exec torchrun ")
    assert not set(";&|\n") & set(shell[2])


def test_a_replaced_worker_learns_the_address_of_the_others(objects: list[Object]) -> None:
    assert environment_of(objects)["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"


@BY_EACH
def test_outages_end_no_job_before_each_node_had_its_share(job: TrainingJob, rendezvous: Rendezvous) -> None:
    """The operator sums the restarts of all running pods, and one outage of etcd restarts each several times."""
    spec = spec_of(render(replace(job, rendezvous=rendezvous)))
    assert spec["runPolicy"]["backoffLimit"] == 10 * job.nodes
    if rendezvous != "static":
        assert spec["elasticPolicy"]["maxRestarts"] >= spec["runPolicy"]["backoffLimit"]


@BY_EACH
def test_pods_restart_in_place_and_leave_with_the_job(job: TrainingJob, rendezvous: Rendezvous) -> None:
    spec = spec_of(render(replace(job, rendezvous=rendezvous)))
    assert spec["runPolicy"]["cleanPodPolicy"] == "Running"
    for replicas in spec["pytorchReplicaSpecs"].values():
        assert replicas["restartPolicy"] == "OnFailure"


def test_a_save_fits_into_the_time_between_sigterm_and_the_end(manifests: Manifests) -> None:
    for job in manifests.platform.jobs:
        objects = manifests.charts[f"job-{job.name}"]
        until_workers_die = int(environment_of(objects)["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])
        assert until_workers_die >= 30 + job.checkpoint_seconds
        assert pod_of(objects)["terminationGracePeriodSeconds"] > until_workers_die


@BY_EACH
def test_a_drain_takes_no_pod_of_a_running_job(job: TrainingJob, rendezvous: Rendezvous) -> None:
    objects = render(replace(job, rendezvous=rendezvous))
    (budget,) = (each for each in objects if each["kind"] == "PodDisruptionBudget")
    replicas = spec_of(objects)["pytorchReplicaSpecs"].values()
    assert budget["spec"]["minAvailable"] == sum(each["replicas"] for each in replicas)


def test_options_never_change_under_a_running_job(objects: list[Object]) -> None:
    (options,) = (each for each in objects if each["kind"] == "ConfigMap")
    assert options["immutable"] is True


def test_the_trainer_reads_the_options_that_are_mounted(objects: list[Object]) -> None:
    (options,) = (each for each in objects if each["kind"] == "ConfigMap")
    (file,) = options["data"]
    pod = pod_of(objects)
    (volume,) = (
        each for each in pod["volumes"] if each.get("configMap", {}).get("name") == options["metadata"]["name"]
    )
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert pod["containers"][0]["command"][-1].endswith(f"-m trainer --config {mounts[volume['name']]}/{file}")


def test_only_the_init_container_may_talk_to_the_api_server(objects: list[Object]) -> None:
    pod = pod_of(objects)
    assert pod["automountServiceAccountToken"] is False
    (volume,) = (each for each in pod["volumes"] if "projected" in each)
    mounting = [
        container["name"]
        for container in [*pod["initContainers"], *pod["containers"]]
        for mount in container["volumeMounts"]
        if mount["name"] == volume["name"]
    ]
    assert mounting == [pod["initContainers"][0]["name"]]


def test_hugging_faces_token_comes_from_a_secret_that_may_be_absent(objects: list[Object]) -> None:
    (token,) = (each for each in pod_of(objects)["containers"][0]["env"] if each["name"] == "HF_TOKEN")
    assert token["valueFrom"] == {"secretKeyRef": {"name": HUGGING_FACE_SECRET, "key": "token", "optional": True}}


def test_nccl_stops_without_efa_and_connects_over_no_link_that_leads_nowhere(objects: list[Object]) -> None:
    values = environment_of(objects)
    # https://github.com/aws/aws-ofi-nccl/pull/530
    assert values["NCCL_NET"] == "Libfabric"
    assert values["NCCL_SOCKET_IFNAME"].startswith("^")
    assert {"lo", "docker", "veth", "eni", "pod-id-link0"} == set(values["NCCL_SOCKET_IFNAME"][1:].split(","))
    assert values["FI_EFA_USE_HUGE_PAGE"] == "0"


def test_a_pod_gets_devices_from_plugins_and_nothing_from_the_host(objects: list[Object]) -> None:
    """A mounted /dev/infiniband shows libfabric devices that are not EFA's."""
    pod = pod_of(objects)
    assert not any("hostPath" in volume for volume in pod["volumes"])
    assert not pod.keys() & {"hostNetwork", "hostIPC", "hostPID"}


def test_shared_memory_is_memory_and_scratch_is_the_nodes_own_disk(objects: list[Object]) -> None:
    pod = pod_of(objects)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    at = {mount["mountPath"]: volumes[mount["name"]] for mount in pod["containers"][0]["volumeMounts"]}
    assert at["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    assert "sizeLimit" in at["/dev/shm"]["emptyDir"]
    assert at["/scratch"]["emptyDir"] == {}


def test_a_worker_goes_to_its_node_group_and_waits_until_the_node_can_mount(objects: list[Object]) -> None:
    pod = pod_of(objects)
    assert pod["nodeSelector"] == {NODE_GROUP_LABEL: "p5"}
    assert pod["tolerations"] == [{"key": GPU_TAINT, "operator": "Exists", "effect": "NoSchedule"}]


def test_workers_would_rather_be_near_one_another(objects: list[Object]) -> None:
    affinity = pod_of(objects)["affinity"]["podAffinity"]
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in affinity
    (term,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["topologyKey"] == "topology.k8s.aws/network-node-layer-3"


def test_names_of_workers_resolve_before_they_are_ready(objects: list[Object]) -> None:
    """The operator's Services leave out pods that are not ready, and workers look for one another at their start."""
    assert "readinessProbe" not in pod_of(objects)["containers"][0]


def test_a_job_brings_its_own_image_or_takes_the_platforms(job: TrainingJob) -> None:
    for given, expected in ((None, "registry/trainer:1"), ("mine/trainer:7", "mine/trainer:7")):
        pod = pod_of(render(replace(job, image=given)))
        assert {each["image"] for each in [*pod["initContainers"], *pod["containers"]]} == {expected}


def test_a_local_job_asks_for_nothing_that_only_gpu_nodes_have(manifests_of: Callable[[str], Manifests]) -> None:
    manifests = manifests_of("local")
    (job,) = manifests.platform.jobs
    objects = manifests.charts[f"job-{job.name}"]
    pod = pod_of(objects)
    assert not pod.keys() & {"nodeSelector", "tolerations", "affinity"}
    assert pod["containers"][0]["resources"]["limits"].keys() == {"cpu", "memory"}
    assert not any(name.startswith(("NCCL_", "FI_")) for name in environment_of(objects))
    assert not pod["containers"][0].get("ports")


def test_what_is_made_from_sample_outputs_says_so(job: TrainingJob) -> None:
    annotated = [each["kind"] for each in render(job, sample=True) if "annotations" in each["metadata"]]
    assert annotated == ["PyTorchJob"]
    assert not any("annotations" in each["metadata"] for each in render(job))
