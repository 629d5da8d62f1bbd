"""What a user gets wrong in a platform or job file is one sentence: file, field, value, what is allowed, the fix."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.loader import CONFIG_VARIABLE, JOBS_FOLDER, chosen_path, load_config
from config.platform import PlatformConfig
from trainer.config import ConfigError

PLATFORMS = sorted((JOBS_FOLDER.parent / "platforms").glob("*.yaml"))
BLOCK = JOBS_FOLDER.parent / "platforms" / "p5-capacity-block.yaml"
RESERVATION = JOBS_FOLDER.parent / "platforms" / "p5-reservation.yaml"
ADMIN = "arn:aws:iam::111122223333:role/platform-engineer"
VPC = {
    "id": "vpc-0123456789abcdef0",
    "private_subnets": {"us-east-2a": "subnet-0123456789abcdef0", "us-east-2b": "subnet-0fedcba9876543210"},
}
ON_DEMAND = JOBS_FOLDER.parent / "platforms" / "p5-4xlarge-on-demand.yaml"


@pytest.fixture(autouse=True)
def _no_platform_is_chosen_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)


def refusal(folder: Path, values: dict[str, Any]) -> str:
    """The sentence that a platform file with these values gets, without the file's name."""
    path = folder / "platform.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}: ")
    assert "\n" not in sentence
    return sentence.removeprefix(f"{path}: ")


def changed(base: Path, dotted: str, value: Any) -> dict[str, Any]:
    """The values of a shipped platform with one field set, or removed when `value` is `...`."""
    values: dict[str, Any] = copy.deepcopy(yaml.safe_load(base.read_text(encoding="utf-8")))
    *parents, last = [int(part) if part.isdigit() else part for part in dotted.split(".")]
    place: Any = values
    for part in parents:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return values


@pytest.mark.parametrize("path", PLATFORMS, ids=lambda path: path.stem)
def test_every_shipped_platform_loads_and_carries_the_name_of_its_file(path: Path) -> None:
    platform = load_config(path)
    assert platform.config.name == path.stem
    assert platform.jobs


@pytest.mark.parametrize("path", PLATFORMS, ids=lambda path: path.stem)
def test_a_shipped_platform_keeps_data_at_teardown_unless_it_is_the_cheap_first_try(path: Path) -> None:
    config = load_config(path).config
    if isinstance(config, PlatformConfig):
        assert config.teardown == ("delete" if path == ON_DEMAND else "retain")


@pytest.mark.parametrize(
    ("base", "field", "value", "expected"),
    [
        (BLOCK, "regoin", "us-east-2", "regoin: there is no option `regoin`; did you mean `region`?"),
        (BLOCK, "observability", {}, "observability: there is no option `observability`; allowed here:"),
        (BLOCK, "teardown", ..., "teardown: is missing (Whether the bucket"),
        (BLOCK, "tags", {"platform": "mine"}, "tags: platform is set by the platform or by AWS"),
        (BLOCK, "account", 111122223333, "account: must be text, got 111122223333; put it in quotes"),
        (BLOCK, "account", "1234", 'account: must match ^[0-9]{12}$, got "1234"'),
        (BLOCK, "kubernetes_version", "1.99", "kubernetes_version: must be one of '1.33', '1.34', '1.35', '1.36', got"),
        (BLOCK, "availability_zones", ["us-east-2a"], "availability_zones: must have at least 2 items"),
        (BLOCK, "availability_zones", ["us-east-2a", "us-east-2a"], "availability_zones: each must be named once"),
        (BLOCK, "availability_zones", ["us-east-2a", "us-west-2a"], "availability_zones: must lie in region us-east-2"),
        (
            BLOCK,
            "availability_zones",
            ["us-east-2b", "us-east-2c"],
            "node_groups: p5 is in us-east-2a, which is not one of",
        ),
        (BLOCK, "network", {"cidr": "10.0.0.1/16"}, "network.cidr: must be an IPv4 network such as 10.0.0.0/16"),
        (BLOCK, "network", {"cidr": "10.0.0.0/8"}, "network.cidr: must be a /16 to a /20"),
        (
            RESERVATION,
            "network",
            {"cidr": "10.0.0.0/20"},
            "network.cidr: its subnets are /23, which hold 507 addresses",
        ),
        (BLOCK, "network", {"vpc": {**VPC, "id": "vpc"}}, "network.vpc.id: must match ^vpc-"),
        (
            BLOCK,
            "network",
            {"vpc": VPC, "nat_gateways": "one"},
            "network: nat_gateways: belongs to what the platform makes, and vpc names what exists",
        ),
        (
            BLOCK,
            "network",
            {"vpc": {**VPC, "private_subnets": {"us-east-2a": "subnet-0123456789abcdef0"}}},
            "must name a subnet for each of availability_zones us-east-2a, us-east-2b and no other, got us-east-2a",
        ),
        (
            BLOCK,
            "cluster",
            {"existing": {"name": "theirs", "security_group_id": "sg-0123456789abcdef0"}},
            "cluster.existing: theirs has a VPC of its own, and network.vpc is absent",
        ),
        (
            BLOCK,
            "cluster.existing",
            {"name": "theirs", "security_group_id": "sg-0123456789abcdef0"},
            "cluster: admins: belongs to what the platform makes, and existing names what exists",
        ),
        (BLOCK, "cluster.admins", [ADMIN, ADMIN], f"cluster.admins: each must be named once, got {ADMIN} twice"),
        (
            BLOCK,
            "cluster.system_node_group",
            {"instance_type": "m7g.xlarge"},
            "cluster.system_node_group.instance_type: must be an x86 type",
        ),
        (BLOCK, "node_groups.0.name", "system", "node_groups[0].name: is the name of the nodes without GPUs"),
        (BLOCK, "cluster.public_access_cidrs", ["0.0.0.0/0"], "opens the API server to more of the internet than a /8"),
        (BLOCK, "cluster.public_access_cidrs", ["0.0.0.0/1"], "opens the API server to more of the internet than a /8"),
        (BLOCK, "network", {"cidr": "8.8.0.0/16"}, "network.cidr: must lie in one of 10.0.0.0/8, 172.16.0.0/12,"),
        (
            BLOCK,
            "storage.mount_path",
            "/etc",
            'storage.mount_path: is a folder that the image or the pod needs, got "/etc"',
        ),
        (BLOCK, "storage.mount_path", "/fsx/", "storage.mount_path: must match"),
        (BLOCK, "tags", {"team<": "x"}, "a tag is a key of 1 to 128 and a value of at most 256 letters"),
        (BLOCK, "tags", {f"k{i}": "v" for i in range(60)}, "tags: must be at most 45"),
        (BLOCK, "account", "١١١١٢٢٢٢٣٣٣٣", "account: must match ^[0-9]{12}$"),
        (BLOCK, "jobs.0.job", "x" * 300, "jobs[0].job: must be one of"),
        (BLOCK, "node_groups.0.max_size", 10**400, "must be less than or equal to 450, got a number of more"),
        (BLOCK, "node_groups", [], "node_groups: must have at least 1 item"),
        (
            BLOCK,
            "node_groups.0.instance_type",
            "p5.96xlarge",
            "node_groups[0].instance_type: must be one of p4de.24xlarge,",
        ),
        (BLOCK, "node_groups.0.instance_type", "p6e-gb200.36xlarge", "is refused, since no public source states"),
        (BLOCK, "node_groups.0.max_size", 5, "max_size: the reservation holds 4 instances, got 5"),
        (BLOCK, "node_groups.0.max_size", 0, "node_groups[0].max_size: must be greater than 0, got 0"),
        (BLOCK, "node_groups.0.desired_size", 2, "desired_size: must be 0 while the reservation is not active, got 2"),
        (BLOCK, "node_groups.0.min_size", 3, "sizes must rise from min_size to desired_size to max_size, got 3, 0, 4"),
        (BLOCK, "node_groups.0.purchase", "spot", "node_groups[0].purchase: must be one of"),
        (BLOCK, "node_groups.0.purchase", "on_demand", "purchase on_demand takes no reservation"),
        (BLOCK, "node_groups.0.reservation", ..., "purchase capacity_block needs a reservation"),
        (BLOCK, "node_groups.0.reservation.ends_at", ..., "a capacity block is named by id and has an end"),
        (BLOCK, "node_groups.0.reservation.id", ..., "needs exactly one of id and resource_group_arn"),
        (BLOCK, "node_groups.0.reservation.id", "cr-", "node_groups[0].reservation.id: must match"),
        (BLOCK, "node_groups.0.availability_zone", "us-east-2a", "a reserved group is in its reservation's zone"),
        (ON_DEMAND, "node_groups.0.availability_zone", ..., "a group without a reservation names its zone"),
        (BLOCK, "storage.capacity_gib", 5000, "must be 1200 or a multiple of 2400, got 5000; the next size up is 7200"),
        (BLOCK, "storage.capacity_gib", "big", "storage.capacity_gib: must be a whole number"),
        (
            BLOCK,
            "storage.metadata_iops",
            5000,
            "storage.metadata_iops: must be 1500, 3000, 6000 or a multiple of 12000",
        ),
        (BLOCK, "cluster.container_insights", True, "cluster.container_insights: must be a mapping"),
        (BLOCK, "storage.throughput_mbps_per_tib", 300, "storage.throughput_mbps_per_tib: must be one of"),
        (BLOCK, "jobs.0.nodes", 5, "jobs[0].nodes: must not exceed max_size 4 of node group p5, got 5"),
        (BLOCK, "jobs.0.nodes", 3, "jobs[0].global_batch_size: must be a multiple of"),
        (BLOCK, "jobs.0.nodes", 1, "jobs[0].shard_group_size: HYBRID_SHARD needs a world size that is two or more"),
        (BLOCK, "jobs.0.node_group", "p4", "jobs[0].node_group: must be one of p5, got p4"),
        (BLOCK, "jobs.0.job", "llama9", "jobs[0].job: must be one of llama2-13b,"),
        (BLOCK, "jobs.1.job", "llama2-7b", "jobs: each must be named once, got llama2-7b twice"),
        (ON_DEMAND, "jobs.0.job", "llama2-7b", "shard_group_size: HYBRID_SHARD needs a world size"),
        (
            ON_DEMAND,
            "jobs.0.job",
            "llama2-13b",
            "the state of 13,015,864,320 parameters takes 194 GiB on each GPU of a shard group of 1",
        ),
    ],
)
def test_a_mistake_in_a_platform_is_one_sentence(
    tmp_path: Path, base: Path, field: str, value: Any, expected: str
) -> None:
    assert expected in refusal(tmp_path, changed(base, field, value))


def test_groups_in_two_zones_are_refused_since_they_share_one_file_system(tmp_path: Path) -> None:
    values = changed(ON_DEMAND, "name", "two-zones")
    other = {**values["node_groups"][0], "name": "other", "availability_zone": "us-east-2b"}
    values["node_groups"].append(other)
    assert (
        "all must be in one zone, that of the file system they share, got p5-small in us-east-2a, other in us-east-2b"
        in (refusal(tmp_path, values))
    )


def test_a_local_platform_accepts_nothing_that_needs_an_account(tmp_path: Path) -> None:
    values = {
        "name": "local",
        "region": "us-east-2",
        "storage": {"host_path": "/srv"},
        "jobs": [{"job": "tiny", "nodes": 2}],
    }
    assert "there is no option `region`" in refusal(tmp_path, values)


def test_a_job_file_beside_the_platform_is_found_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text((JOBS_FOLDER / "tiny.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    path = tmp_path / "local.yaml"
    path.write_text("{name: local, storage: {host_path: /srv}, jobs: [{job: ./mine.yaml, nodes: 2}]}", encoding="utf-8")
    assert [job.name for job in load_config(path).jobs] == ["mine"]


def test_two_jobs_that_would_write_into_one_run_are_refused(tmp_path: Path) -> None:
    job = yaml.safe_load((JOBS_FOLDER / "tiny.yaml").read_text(encoding="utf-8"))
    job["trainer"]["run"] = "same"
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    path = tmp_path / "local.yaml"
    jobs = "[{job: ./one.yaml, nodes: 2}, {job: ./two.yaml, nodes: 2}]"
    path.write_text(f"{{name: local, storage: {{host_path: /srv}}, jobs: {jobs}}}", encoding="utf-8")
    with pytest.raises(ConfigError, match="two of them write into the same run same; give each its own `run`"):
        load_config(path)


def test_a_mistake_in_a_job_file_names_the_platform_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("trainer: {}", encoding="utf-8")
    path = tmp_path / "local.yaml"
    path.write_text("{name: local, storage: {host_path: /srv}, jobs: [{job: ./mine.yaml, nodes: 2}]}", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"mine\.yaml: trainer\.model: is missing .* \(named by .*local\.yaml: jobs\[0\]\)"
    ):
        load_config(path)


def test_a_job_may_not_set_what_its_platform_decides(tmp_path: Path) -> None:
    job = yaml.safe_load((JOBS_FOLDER / "tiny.yaml").read_text(encoding="utf-8"))
    job["trainer"]["device"] = "cuda"
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    path = tmp_path / "local.yaml"
    path.write_text("{name: local, storage: {host_path: /srv}, jobs: [{job: ./mine.yaml, nodes: 2}]}", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"trainer: device follows from the platform, got 'cuda'; remove it from the job"
    ):
        load_config(path)


def test_a_job_on_p5_gets_the_mount_path_the_device_and_the_peak_of_its_platform() -> None:
    job = load_config(BLOCK).jobs[0]
    assert (job.trainer.shared_dir, job.trainer.device, job.trainer.run) == ("/fsx", "cuda", "llama2-7b")
    assert job.trainer.peak_tflops_per_gpu == 989
    assert job.world_size == 32


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"\x00\xff\xfe", "must be YAML text in UTF-8, got binary data"),
        (b"- name: x", "must be a mapping"),
        (b"name: [x", "line 1: not valid YAML"),
        (b"name: x\nname: y\n", "line 2: `name` stands twice"),
        (b"1: x", "a key must be text, got 1"),
        (b"name: &n x\naccount: *n\n", "line 2: aliases (*n) are not allowed; write it out"),
        (b"node_groups: [{desired_size: 020}]", "line 1: 020 must not begin with a zero"),
        (b"ends_at: 2027-13-45", "holds a value that cannot be read"),
        (b"[" * 3000, "holds a value that cannot be read"),
    ],
)
def test_a_file_that_is_no_platform_at_all_is_one_sentence(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "platform.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_says_from_where_the_path_was_taken(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file; check the path, it is taken from"):
        load_config(tmp_path / "none.yaml")


def test_the_file_is_chosen_by_flag_context_or_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_path(flag="a.yaml") == Path("a.yaml")
    assert chosen_path(context="b.yaml") == Path("b.yaml")
    monkeypatch.setenv(CONFIG_VARIABLE, "c.yaml")
    assert chosen_path() == Path("c.yaml")
    assert chosen_path(flag="c.yaml") == Path("c.yaml")


def test_two_choices_that_differ_are_an_error_and_so_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no platform file was chosen"):
        chosen_path()
    monkeypatch.setenv(CONFIG_VARIABLE, "c.yaml")
    with pytest.raises(
        ConfigError, match=r"two platform files were chosen, --config=a\.yaml and PLATFORM_CONFIG=c\.yaml"
    ):
        chosen_path(flag="a.yaml")
