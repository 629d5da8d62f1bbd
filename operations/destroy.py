"""`make destroy`: a platform back to nothing, without losing what its jobs wrote.

Jobs are stopped and save, their files reach the bucket, the stacks go, and then what AWS services left behind.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3

from config.names import STACKS, TRAINING_NAMESPACE
from config.platform import PlatformConfig
from operations.aws import AWS_ERRORS, find_stack, pages, platform_on_aws, said, session_of
from operations.kubectl import check_cluster, kubectl
from operations.outputs import OUTPUTS
from operations.sweep import sweep
from trainer.config import ConfigError

# A pod saves before it ends, and a large checkpoint takes its time.
JOBS_END_WITHIN = timedelta(minutes=30)
EXPORT_ENDS_WITHIN = timedelta(minutes=60)
# CloudWatch gets a figure a minute, a few minutes late.
FIGURES_WITHIN = timedelta(minutes=10)
# What was written last has been queued by then.
QUEUED_WITHIN = timedelta(minutes=1)
SECONDS_BETWEEN_LOOKS = 15.0
MOST_EVENTS_SHOWN = 20
# The operator's label on the pods of a job.
JOB_LABEL = "training.kubeflow.org/job-name"


def main() -> int:
    """Entry of `make destroy`.

    Returns:
        0 if nothing is left but what is named, 1 if something is, 2 for a mistake.
    """
    parser = argparse.ArgumentParser(prog="python -m operations.destroy", description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", help="platform file")
    parser.add_argument("--yes", action="store_true", help="do not ask for the platform's name")
    parser.add_argument(
        "--exported", action="store_true", help="do not wait for the export: you have looked at the bucket yourself"
    )
    arguments = parser.parse_args()
    try:
        path, config = platform_on_aws(arguments.config)
        session = session_of(config)
        if not arguments.yes:
            confirm(config)
        return destroy(path, config, session, is_exported=arguments.exported)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except AWS_ERRORS as error:
        print(f"AWS: {said(error)}; start the destroy again, which goes on where this one ended", file=sys.stderr)
        return 2


def destroy(path: Path, config: PlatformConfig, session: boto3.Session, *, is_exported: bool) -> int:
    """Every step in turn.

    Raises:
        ConfigError: jobs cannot be stopped, or their files do not reach the bucket; nothing was destroyed.
    """
    outputs = stack_outputs(session.client("cloudformation"), config.name)
    cluster = config.name if config.cluster.existing is None else config.cluster.existing.name
    if cluster in pages(session.client("eks"), "list_clusters", "clusters"):
        stop_jobs(config)
    if (file_system := outputs.get("FileSystemId")) and not is_exported:
        if config.teardown == "delete" and config.storage.bucket is None:
            print("the bucket goes with the platform, so no export is waited for", flush=True)
        else:
            wait_for_export(session, config, file_system, since=datetime.now(UTC))
    status = run_cdk(path)
    if status:
        # What AWS services put into the VPC holds it until it is swept.
        print("the stacks did not go at the first try; sweeping, then once more", flush=True)
        try:
            sweep(config, session, delete=True)
        except ConfigError:
            raise ConfigError(
                f"cdk destroy: ended with status {status} while the cluster still exists; repair what it says above, "
                "and start the destroy again"
            ) from None
        status = run_cdk(path)
    left = sweep(config, session, delete=not status)
    if status:
        print(f"cdk destroy ended with status {status}; what it said is above", file=sys.stderr)
        return 1
    forget_outputs(OUTPUTS, config.name)
    print("\n".join(kept(config, outputs)))
    return left


def confirm(config: PlatformConfig) -> None:
    """Have the user type the platform's name.

    Raises:
        ConfigError: it was not typed.
    """
    print(
        f"{config.name} in account {config.account}, {config.region}, will be destroyed: its cluster, its file system "
        f"and its images{', and its bucket with data and checkpoints' if config.teardown == 'delete' else ''}."
    )
    try:
        typed = input(f"Type {config.name} to go on: ")
    except EOFError:
        typed = ""
    if typed.strip() != config.name:
        raise ConfigError(
            f"confirmation: must be {config.name}, got {typed.strip() or 'nothing'}; nothing was destroyed "
            "(YES=1 asks nothing)"
        )


def stack_outputs(cloudformation: Any, platform: str) -> dict[str, str]:
    """The outputs of those of a platform's stacks that exist."""
    stacks = [find_stack(cloudformation, f"{platform}-{stack}") for stack in STACKS]
    return {each["OutputKey"]: each["OutputValue"] for stack in stacks if stack for each in stack.get("Outputs", [])}


def stop_jobs(config: PlatformConfig) -> None:
    """Delete every training job, and wait until its pods have saved and ended.

    Raises:
        ConfigError: the cluster is out of reach, or a pod does not end.
    """
    within = f"--namespace={TRAINING_NAMESPACE}"
    try:
        check_cluster(config)
        kubectl("delete", "pytorchjobs.kubeflow.org", "--all", within, "--ignore-not-found")
    except ConfigError as error:
        # Nothing was ever applied to this cluster.
        if "the server doesn't have a resource type" in str(error):
            return
        raise ConfigError(
            f"{error} (jobs must be stopped first, or they lose what they did since their last checkpoint; "
            "where that does not matter, run npx cdk destroy --all, then make sweep)"
        ) from None
    ends = datetime.now(UTC) + JOBS_END_WITHIN
    while pods := kubectl("get", "pods", within, f"--selector={JOB_LABEL}", "--output=name").split():
        if datetime.now(UTC) > ends:
            raise ConfigError(f"{pods[0]}: has not ended within {JOBS_END_WITHIN}; look at it with kubectl describe")
        print(f"{len(pods)} pods are saving and ending", flush=True)
        time.sleep(SECONDS_BETWEEN_LOOKS)
    print("no training job runs", flush=True)


def wait_for_export(session: boto3.Session, config: PlatformConfig, file_system: str, *, since: datetime) -> None:
    """Wait until every file that a job wrote is in the bucket, and say which could not be exported.

    https://docs.aws.amazon.com/fsx/latest/LustreGuide/fs-metrics.html#auto-import-export-metrics

    Raises:
        ConfigError: the export is broken, or does not end in time, or nobody knows.
    """
    fsx, cloudwatch = session.client("fsx"), session.client("cloudwatch")
    by_hand = "compare /runs with the bucket, then start again with EXPORTED=1"
    for each in broken_exports(fsx, file_system):
        raise ConfigError(f"export: {each} is broken, and nothing was destroyed; repair it, or {by_hand}")
    while (age := oldest_queued_seconds(cloudwatch, file_system, since)) != 0 or export_tasks(fsx, file_system):
        waited = datetime.now(UTC) - since
        if age is None and waited > FIGURES_WITHIN:
            raise ConfigError(
                f"export: CloudWatch has no figure of the export of {file_system} within {FIGURES_WITHIN}, and nothing "
                f"was destroyed; {by_hand}"
            )
        if waited > EXPORT_ENDS_WITHIN:
            raise ConfigError(
                f"export: the oldest file of {file_system} has waited {age} s, and nothing was destroyed; "
                f"start again later, or {by_hand}"
            )
        print(
            "waiting for the first figure of the export"
            if age is None
            else f"the oldest file to export has waited {age:.0f} s",
            flush=True,
        )
        time.sleep(SECONDS_BETWEEN_LOOKS)
    print("every file is in the bucket, but for those that FSx named here:", flush=True)
    print(
        "\n".join(f"  {event}" for event in export_events(session.client("logs"), config.name)) or "  none", flush=True
    )


def broken_exports(fsx: Any, file_system: str) -> list[str]:
    """Folders whose association with the bucket exports and does not work."""
    filters = [{"Name": "file-system-id", "Values": [file_system]}]
    found = fsx.describe_data_repository_associations(Filters=filters)["Associations"]
    return [
        f"{each['FileSystemPath']} ({each['Lifecycle']}: {each.get('FailureDetails', {}).get('Message', 'no reason')})"
        for each in found
        if each.get("S3", {}).get("AutoExportPolicy") and each["Lifecycle"] in ("MISCONFIGURED", "FAILED")
    ]


def oldest_queued_seconds(cloudwatch: Any, file_system: str, since: datetime) -> float | None:
    """Seconds that the oldest change has waited for its export, or None where no figure counts what came by `since`."""
    first = since + QUEUED_WITHIN
    dimensions = {"FileSystemId": file_system, "Publisher": "AutoExport"}
    figures = cloudwatch.get_metric_statistics(
        Namespace="AWS/FSx",
        MetricName="AgeOfOldestQueuedMessage",
        Dimensions=[{"Name": name, "Value": value} for name, value in dimensions.items()],
        StartTime=first,
        # Later than the start, however early this is asked.
        EndTime=first + EXPORT_ENDS_WITHIN + FIGURES_WITHIN,
        Period=60,
        Statistics=["Maximum"],
    )["Datapoints"]
    # CloudWatch rounds the start down to a minute.
    counting = [figure for figure in figures if figure["Timestamp"] >= first]
    if not counting:
        return None
    newest = max(counting, key=lambda figure: figure["Timestamp"])
    return float(newest["Maximum"])


def export_tasks(fsx: Any, file_system: str) -> list[str]:
    """Export tasks that somebody started and that have not ended."""
    filters = [{"Name": "file-system-id", "Values": [file_system]}]
    filters.append({"Name": "task-lifecycle", "Values": ["PENDING", "EXECUTING"]})
    tasks = fsx.describe_data_repository_tasks(Filters=filters)["DataRepositoryTasks"]
    return [task["TaskId"] for task in tasks if task["Type"] == "EXPORT_TO_REPOSITORY"]


def export_events(logs: Any, platform: str) -> list[str]:
    """What FSx could not export, as its log says, the newest last.

    https://docs.aws.amazon.com/fsx/latest/LustreGuide/cw-event-logging.html
    """
    try:
        events = pages(logs, "filter_log_events", "events", logGroupName=f"/aws/fsx/{platform}")
    except logs.exceptions.ResourceNotFoundException:
        return []
    found = [event["message"].strip() for event in events if "Export" in event["message"]]
    more = [f"and {len(found) - MOST_EVENTS_SHOWN} before"] if len(found) > MOST_EVENTS_SHOWN else []
    return more + found[-MOST_EVENTS_SHOWN:]


def run_cdk(path: Path) -> int:
    """Destroy every stack with the CDK CLI, which prints as it goes.

    Returns:
        Its status.

    Raises:
        ConfigError: there is no such program.
    """
    command = ["cdk", "destroy", "--all", "--force", "--no-notices", "--context", f"config={path}"]
    print(" ".join(command), flush=True)
    try:
        return subprocess.run(command, check=False).returncode
    except FileNotFoundError:
        raise ConfigError("cdk: is not on PATH; run make setup and `. .venv/bin/activate`, or make destroy") from None


def forget_outputs(path: Path, platform: str) -> None:
    """Remove an outputs file that names what is gone."""
    try:
        stacks = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if isinstance(stacks, dict) and stacks and stacks.keys() <= {f"{platform}-{stack}" for stack in STACKS}:
        path.unlink()


def kept(config: PlatformConfig, outputs: dict[str, str]) -> Sequence[str]:
    """What is still there, whom it costs, and how it goes."""
    lines = []
    bucket = config.storage.bucket or outputs.get("BucketName")
    if bucket and config.storage.bucket:
        lines.append(f"kept: bucket {bucket}, which was adopted")
    elif bucket and config.teardown == "retain":
        lines.append(
            f"kept: bucket {bucket} with data and checkpoints (teardown: retain); a new platform adopts it by "
            f"storage.bucket: {bucket}"
        )
    lines += [
        f"kept: {group.reservation.id or group.reservation.resource_group_arn}, which costs until its end"
        for group in config.node_groups
        if group.reservation is not None
    ]
    if config.network.vpc is not None:
        lines.append(f"kept: {config.network.vpc.id}, which was adopted")
    if config.cluster.existing is not None:
        lines.append(f"kept: cluster {config.cluster.existing.name}, which was adopted")
    else:
        lines.append("kept: the key of the cluster's secrets, which AWS deletes in 7 days")
    return [*lines, "kept: the stack CDKToolkit, which every CDK app of the account uses"]


if __name__ == "__main__":
    sys.exit(main())
