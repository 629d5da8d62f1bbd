"""A platform goes in order: jobs, export, stacks, leftovers; and what stays is named."""

from __future__ import annotations

import io
import json
import stat
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from botocore.exceptions import UnStubbedResponseError

from config.names import STACKS
from operations import destroy, sweep
from tests.operations.conftest import ACCOUNT, own_values, stubbed
from tests.synthesis import config_from
from trainer.config import ConfigError

NAME = "p5-capacity-block"
FILE_SYSTEM = "fs-0a1b2c3d4e5f60718"
CONFIG = config_from(own_values())
# It notes how it was called, and each time ends with the next status of a list, or with 0.
FAKE_CDK = f"""#!{sys.executable}
import json, pathlib, sys
here = pathlib.Path(__file__).parent
with (here / "cdk.jsonl").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + chr(10))
left = (here / "statuses").read_text().split()
(here / "statuses").write_text(" ".join(left[1:]))
sys.exit(int(left[0]) if left else 0)
"""


class Cdk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        program = folder / "cdk"
        program.write_text(FAKE_CDK)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.ends_with()

    def ends_with(self, *statuses: int) -> None:
        (self.folder / "statuses").write_text(" ".join(map(str, statuses)))

    def calls(self) -> list[list[str]]:
        path = self.folder / "cdk.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def cdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cdk:
    fake = Cdk(tmp_path / "cdk-bin")
    monkeypatch.setenv("PATH", str(fake.folder))
    return fake


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aws: Any) -> Callable[..., int]:
    """`make destroy` in a working directory with a platform, its outputs, and a storage stack in the account."""
    values = {key: {"Value": value} for key, value in (("FileSystemId", FILE_SYSTEM), ("BucketName", "the-bucket"))}
    group = {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": f"/aws/fsx/{NAME}"}}
    body = json.dumps({"Resources": {"Logs": group}, "Outputs": values})
    aws.client("cloudformation").create_stack(StackName=f"{NAME}-storage", TemplateBody=body)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(destroy, "SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(sweep, "SECONDS_BETWEEN_ROUNDS", 0.0)

    def run(*arguments: str, **changes: Any) -> int:
        platform = {**own_values(), "jobs": [], **changes}
        (tmp_path / "platform.yaml").write_text(yaml.safe_dump(platform), encoding="utf-8")
        monkeypatch.setattr("sys.argv", ["destroy", "--config", "platform.yaml", *arguments])
        return destroy.main()

    return run


def make_cluster(aws: Any) -> None:
    role = f"arn:aws:iam::{ACCOUNT}:role/cluster"
    aws.client("eks").create_cluster(name=NAME, roleArn=role, resourcesVpcConfig={"subnetIds": []})


def test_the_stacks_go_and_what_stays_is_named(
    start: Callable[..., int], cdk: Cdk, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "outputs.json").write_text(json.dumps({f"{NAME}-storage": {}}), encoding="utf-8")
    assert start("--yes", "--exported") == 0
    context = ["--context", "config=platform.yaml"]
    assert cdk.calls() == [["destroy", "--all", "--force", "--no-notices", *context]]
    said = capsys.readouterr().out
    assert "kept: bucket the-bucket with data and checkpoints (teardown: retain)" in said
    assert "kept: cr-0a1b2c3d4e5f60718, which costs until its end" in said
    assert "kept: the stack CDKToolkit" in said
    assert not (tmp_path / "outputs.json").exists()


@pytest.mark.parametrize(("typed", "status"), [(f"{NAME}\n", 0), ("yes\n", 2), ("", 2)])
def test_only_the_platforms_name_typed_destroys_it(
    start: Callable[..., int],
    cdk: Cdk,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    typed: str,
    status: int,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert start("--exported") == status
    assert len(cdk.calls()) == (1 if status == 0 else 0)
    assert ("nothing was destroyed" in capsys.readouterr().err) == (status == 2)


def test_the_question_says_what_becomes_of_the_bucket(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for teardown in ("retain", "delete"):
        monkeypatch.setattr("sys.stdin", io.StringIO(NAME))
        destroy.confirm(config_from(own_values() | {"teardown": teardown}))
        assert ("its bucket" in capsys.readouterr().out) == (teardown == "delete")


def test_jobs_are_stopped_before_anything_else_and_their_pods_waited_for(
    start: Callable[..., int], cdk: Cdk, aws: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_cluster(aws)
    asked: list[tuple[str, ...]] = []
    pods = ["pod/a pod/b", "pod/a", ""]

    def kubectl(*arguments: str) -> str:
        assert not cdk.calls()
        asked.append(arguments)
        return pods.pop(0) if arguments[0] == "get" else ""

    monkeypatch.setattr(destroy, "kubectl", kubectl)
    monkeypatch.setattr(destroy, "check_cluster", lambda _config: None)
    start("--yes", "--exported")
    assert asked[0] == ("delete", "pytorchjobs.kubeflow.org", "--all", "--namespace=training", "--ignore-not-found")
    assert not pods
    said = capsys.readouterr().out
    assert said.index("2 pods are saving") < said.index("no training job runs") < said.index("cdk destroy")


@pytest.mark.usefixtures("aws")
def test_without_a_way_to_the_cluster_nothing_is_destroyed(
    start: Callable[..., int], cdk: Cdk, aws: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    make_cluster(aws)
    assert start("--yes", "--exported") == 2
    assert "kubectl: is not on PATH" in capsys.readouterr().err
    assert cdk.calls() == []


def test_a_cluster_that_nothing_was_applied_to_has_no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    def kubectl(*_arguments: str) -> str:
        raise ConfigError('kubectl delete failed: error: the server doesn\'t have a resource type "pytorchjobs"')

    monkeypatch.setattr(destroy, "kubectl", kubectl)
    monkeypatch.setattr(destroy, "check_cluster", lambda _config: None)
    destroy.stop_jobs(CONFIG)


def test_a_pod_that_does_not_end_stops_the_destroy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destroy, "kubectl", lambda *_arguments: "pod/stuck")
    monkeypatch.setattr(destroy, "check_cluster", lambda _config: None)
    monkeypatch.setattr(destroy, "JOBS_END_WITHIN", timedelta(0))
    with pytest.raises(ConfigError, match="pod/stuck: has not ended"):
        destroy.stop_jobs(CONFIG)


class Session:
    """FSx as a test has it, beside the other services of an account; moto knows no data repositories."""

    def __init__(self, aws: Any, *, lifecycle: str = "AVAILABLE", tasks: tuple[int, ...] = (0,)) -> None:
        self.aws = aws
        filters = {"Filters": [{"Name": "file-system-id", "Values": [FILE_SYSTEM]}]}
        association = {
            "FileSystemPath": "/runs",
            "Lifecycle": lifecycle,
            "FailureDetails": {"Message": "the bucket is gone"},
            "S3": {"AutoExportPolicy": {"Events": ["NEW"]}},
        }
        importing = {**association, "FileSystemPath": "/data", "Lifecycle": "MISCONFIGURED", "S3": {}}
        answers: list[Any] = [
            ("describe_data_repository_associations", {"Associations": [importing, association]}, filters)
        ]
        running = {"Name": "task-lifecycle", "Values": ["PENDING", "EXECUTING"]}
        task = {
            "TaskId": "task-0a1b2c3d4e5f60718",
            "Type": "EXPORT_TO_REPOSITORY",
            "Lifecycle": "EXECUTING",
            "CreationTime": "2026-01-01",
        }
        importing_task = task | {"Type": "IMPORT_METADATA_FROM_REPOSITORY"}
        answers += [
            (
                "describe_data_repository_tasks",
                {"DataRepositoryTasks": [importing_task] + [task] * count},
                {"Filters": [*filters["Filters"], running]},
            )
            for count in tasks
        ]
        self.fsx = stubbed("fsx", *answers)

    def client(self, service: str) -> Any:
        return self.fsx if service == "fsx" else self.aws.client(service)


def measure(aws: Any, *figures: tuple[int, float], publisher: str = "AutoExport") -> None:
    """Figures of the queue: minutes from now, seconds of age."""
    dimensions = [{"Name": "FileSystemId", "Value": FILE_SYSTEM}, {"Name": "Publisher", "Value": publisher}]
    now = datetime.now(UTC)
    data = [
        {
            "MetricName": "AgeOfOldestQueuedMessage",
            "Dimensions": dimensions,
            "Timestamp": now + timedelta(minutes=minutes),
            "Value": age,
        }
        for minutes, age in figures
    ]
    aws.client("cloudwatch").put_metric_data(Namespace="AWS/FSx", MetricData=data)


def exported(aws: Any, session: Session | None = None) -> None:
    destroy.wait_for_export(session or Session(aws), CONFIG, FILE_SYSTEM, since=datetime.now(UTC))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destroy, "SECONDS_BETWEEN_LOOKS", 0.0)


def test_an_empty_queue_lets_the_destroy_go_on_and_names_what_fsx_could_not_export(
    aws: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = aws.client("logs")
    logs.create_log_group(logGroupName=f"/aws/fsx/{NAME}")
    logs.create_log_stream(logGroupName=f"/aws/fsx/{NAME}", logStreamName="datarepo")
    now = int(datetime.now(UTC).timestamp() * 1000)
    messages = ["S3ImportListObjectError /data", *(f"S3ExportInternalError /runs/{index}" for index in range(25))]
    events = [{"timestamp": now + index, "message": message} for index, message in enumerate(messages)]
    logs.put_log_events(logGroupName=f"/aws/fsx/{NAME}", logStreamName="datarepo", logEvents=events)
    measure(aws, (3, 0.0))
    exported(aws)
    said = capsys.readouterr().out
    assert "S3ExportInternalError /runs/24" in said
    assert "and 5 before" in said
    assert "Import" not in said


def test_the_newest_figure_counts_and_those_from_before_the_end_of_the_jobs_do_not(aws: Any) -> None:
    cloudwatch, now = aws.client("cloudwatch"), datetime.now(UTC)
    measure(aws, (-5, 0.0))
    measure(aws, (4, 0.0), publisher="AutoImport")
    assert destroy.oldest_queued_seconds(cloudwatch, FILE_SYSTEM, now) is None
    measure(aws, (3, 0.0), (4, 90.0))
    assert destroy.oldest_queued_seconds(cloudwatch, FILE_SYSTEM, now) == 90.0


def test_a_figure_of_the_minute_that_cloudwatch_rounds_down_to_does_not_count() -> None:
    now = datetime.now(UTC)
    figure = {"Timestamp": now + destroy.QUEUED_WITHIN - timedelta(seconds=30), "Maximum": 0.0}
    cloudwatch = stubbed("cloudwatch", ("get_metric_statistics", {"Datapoints": [figure]}, None))
    assert destroy.oldest_queued_seconds(cloudwatch, FILE_SYSTEM, now) is None


def test_a_queue_that_does_not_empty_stops_the_destroy(aws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(aws, (3, 120.0))
    monkeypatch.setattr(destroy, "EXPORT_ENDS_WITHIN", timedelta(0))
    with pytest.raises(ConfigError, match=r"has waited 120.0 s, and nothing was destroyed"):
        exported(aws)


def test_no_figure_at_all_stops_the_destroy(aws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destroy, "FIGURES_WITHIN", timedelta(0))
    with pytest.raises(ConfigError, match=r"no figure of the export .*start again with EXPORTED=1"):
        exported(aws)


def test_an_export_task_is_waited_for(aws: Any) -> None:
    measure(aws, (3, 0.0))
    session = Session(aws, tasks=(2, 1, 0))
    exported(aws, session)
    with pytest.raises(UnStubbedResponseError):  # every answer was asked for
        session.fsx.describe_data_repository_tasks()


def test_a_broken_association_stops_the_destroy(aws: Any) -> None:
    with pytest.raises(ConfigError, match=r"/runs \(MISCONFIGURED: the bucket is gone\) is broken"):
        exported(aws, Session(aws, lifecycle="MISCONFIGURED"))


def test_a_bucket_that_goes_too_is_not_waited_for(
    start: Callable[..., int], cdk: Cdk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start("--yes", teardown="delete") == 0
    said = capsys.readouterr().out
    assert "no export is waited for" in said
    assert "kept: bucket" not in said
    assert len(cdk.calls()) == 1


def test_an_adopted_bucket_is_waited_for_whatever_the_teardown(
    start: Callable[..., int], cdk: Cdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[str] = []
    monkeypatch.setattr(destroy, "wait_for_export", lambda _s, _c, name, **_since: waited.append(name))
    start("--yes", teardown="delete", storage={"bucket": "theirs"})
    assert waited == [FILE_SYSTEM]
    assert len(cdk.calls()) == 1


def leave_log_group(aws: Any) -> None:
    aws.client("logs").create_log_group(logGroupName=f"/aws/containerinsights/{NAME}/application")


def test_what_holds_the_stacks_is_swept_and_they_go_at_the_second_try(
    start: Callable[..., int], cdk: Cdk, aws: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_log_group(aws)
    cdk.ends_with(1, 0)
    assert start("--yes", "--exported") == 0
    assert len(cdk.calls()) == 2
    assert f"removing log group /aws/containerinsights/{NAME}/application" in capsys.readouterr().out


def test_stacks_that_do_not_go_end_with_one(
    start: Callable[..., int], cdk: Cdk, capsys: pytest.CaptureFixture[str]
) -> None:
    cdk.ends_with(1, 1)
    assert start("--yes", "--exported") == 1
    assert "cdk destroy ended with status 1" in capsys.readouterr().err


def test_leftovers_are_removed_after_the_stacks(start: Callable[..., int], cdk: Cdk, aws: Any) -> None:
    leave_log_group(aws)
    assert start("--yes", "--exported") == 0
    assert len(cdk.calls()) == 1
    found = aws.client("logs").describe_log_groups(logGroupNamePrefix="/aws/containerinsights/")["logGroups"]
    assert found == []


def test_a_cluster_that_does_not_go_is_not_swept_under(
    start: Callable[..., int], cdk: Cdk, aws: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_cluster(aws)
    leave_log_group(aws)
    monkeypatch.setattr(destroy, "stop_jobs", lambda _config: None)
    cdk.ends_with(1)
    assert start("--yes", "--exported") == 2
    assert "while the cluster still exists" in capsys.readouterr().err
    assert len(cdk.calls()) == 1
    assert len(aws.client("logs").describe_log_groups(logGroupNamePrefix="/aws/containerinsights/")["logGroups"]) == 1


def test_outputs_of_another_platform_are_not_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "outputs.json"
    for content in ('{"other-storage": {}}', "{}", "[", json.dumps({f"{NAME}-x": {}})):
        path.write_text(content, encoding="utf-8")
        destroy.forget_outputs(path, NAME)
        assert path.exists()
    path.write_text(json.dumps({f"{NAME}-{stack}": {} for stack in STACKS}), encoding="utf-8")
    destroy.forget_outputs(path, NAME)
    assert not path.exists()


def test_what_was_adopted_is_named_as_kept() -> None:
    values = own_values()
    subnets = {"us-east-2a": "subnet-0a1b2c3d4e5f60718", "us-east-2b": "subnet-1a1b2c3d4e5f60718"}
    values["network"] = {"vpc": {"id": "vpc-0a1b2c3d4e5f60718", "private_subnets": subnets}}
    values["cluster"] = {"existing": {"name": "theirs", "security_group_id": "sg-0a1b2c3d4e5f60718"}}
    values["storage"]["bucket"] = "their-bucket"
    said = "\n".join(destroy.kept(config_from(values), {}))
    assert all(f"{what}, which was adopted" in said for what in ("vpc-0a1b2c3d4e5f60718", "theirs", "their-bucket"))
