"""`make submit`: one training job onto the platform's cluster."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from config.loader import Platform, chosen_path, load_config
from config.names import TRAINING_NAMESPACE
from operations.kubectl import MANIFESTS, check_cluster, kubectl, platform_files, read_objects, refuse_samples
from trainer.config import ConfigError

# A webhook whose pod was just replaced may refuse for a second or two after it is reported ready.
TRIES = 5
SECONDS_BETWEEN_TRIES = 2.0


def main() -> int:
    """Entry of `make submit`."""
    parser = argparse.ArgumentParser(prog="python -m operations.submit", description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", help="platform file")
    parser.add_argument("--job", required=True, help="name of a job of the platform")
    arguments = parser.parse_args()
    try:
        platform = load_config(chosen_path(flag=arguments.config))
        path = job_file(platform, arguments.job)
        check_cluster(platform.config)
        clear(path, arguments.job)
        submit(path)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    (job,) = (job for job in platform.jobs if job.name == arguments.job)
    first = "master-0" if job.rendezvous == "static" else "worker-0"
    follow = f"kubectl logs --namespace={TRAINING_NAMESPACE} --follow {job.name}-{first}"
    print(f"{arguments.job} is submitted; follow it with `{follow}`")
    return 0


def job_file(platform: Platform, name: str) -> Path:
    """The manifest of a job.

    Raises:
        ConfigError: the platform names no such job, or its manifest is not there or a sample.
    """
    names = [job.name for job in platform.jobs]
    if name not in names:
        raise ConfigError(
            f"--job: must be one of {', '.join(names)}, got {name or 'none'}; name a job of the platform file"
        )
    platform_files(platform.config)
    found = list(MANIFESTS.glob(f"????-job-{name}.k8s.yaml"))
    if not found:
        raise ConfigError(f"{MANIFESTS}/: has no manifest of job {name}; run make synth first")
    refuse_samples(read_objects(found[0]))
    return found[0]


def clear(path: Path, name: str) -> None:
    """Refuse a job that is there already, and remove what a job that is gone left: its options cannot be changed.

    Raises:
        ConfigError: the job is on the cluster, running or finished, or kubectl failed.
    """
    resource = f"pytorchjobs.kubeflow.org/{name}"
    if kubectl("get", resource, f"--namespace={TRAINING_NAMESPACE}", "--ignore-not-found", "--output=name").strip():
        raise ConfigError(
            f"--job: {name} is on the cluster, where it runs or has ended, and would not start again; "
            f"remove it first with `kubectl delete --filename={path}`, its checkpoints stay"
        )
    kubectl("delete", "--ignore-not-found", f"--filename={path}")


def submit(path: Path) -> None:
    """Apply a job's manifest, again while the webhook that must admit it is not up yet.

    Raises:
        ConfigError: kubectl failed.
    """
    for attempt in range(1, TRIES + 1):
        try:
            kubectl("apply", "--server-side", f"--filename={path}")
        except ConfigError as error:
            if "failed calling webhook" not in str(error) or attempt == TRIES:
                raise
            time.sleep(SECONDS_BETWEEN_TRIES)
        else:
            return


if __name__ == "__main__":
    sys.exit(main())
