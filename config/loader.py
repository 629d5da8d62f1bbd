"""From the one file that the user chose to a checked Platform. Both entry points, and everything else, come here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from config.job import NAME_PATTERN, JobConfig, TrainingJob
from config.local import LocalConfig, LocalJobReference
from config.platform import JobReference, PlatformConfig
from trainer.config import ConfigError, read_yaml, validate

CONFIG_VARIABLE = "PLATFORM_CONFIG"
JOBS_FOLDER = Path(__file__).parent / "jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A platform file and the jobs that it names, each checked against the other."""

    config: PlatformConfig | LocalConfig
    jobs: tuple[TrainingJob, ...]


def chosen_path(*, flag: str | None = None, context: str | None = None) -> Path:
    """The platform file that the user chose by `--config`, by the CDK CLI's `-c config=` or by PLATFORM_CONFIG.

    Raises:
        ConfigError: none was chosen, or two that differ.
    """
    choices = {"--config": flag, "-c config": context, CONFIG_VARIABLE: os.environ.get(CONFIG_VARIABLE)}
    given = {way: Path(path) for way, path in choices.items() if path}
    if not given:
        raise ConfigError(
            "no platform file was chosen; name one of config/platforms/ by --config PATH, "
            f"by -c config=PATH (cdk) or by {CONFIG_VARIABLE}=PATH"
        )
    if len({path.resolve() for path in given.values()}) > 1:
        named = " and ".join(f"{way}={path}" for way, path in given.items())
        raise ConfigError(f"two platform files were chosen, {named}; keep one")
    return next(iter(given.values()))


def load_config(path: Path) -> Platform:
    """The platform in a YAML file, with its jobs.

    Raises:
        ConfigError: the file, a job that it names, or the two together are not what can be run.
    """
    values = read_yaml(path)
    storage = values.get("storage")
    is_local = isinstance(storage, dict) and "host_path" in storage and "account" not in values
    config: PlatformConfig | LocalConfig = (
        validate(LocalConfig, values, source=str(path))
        if is_local
        else validate(PlatformConfig, values, source=str(path))
    )
    jobs = tuple(_place_jobs(config, path))
    names = [job.name for job in jobs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"{path}: jobs: each must be named once, got {name} twice; copy its file under another name"
            )
    runs = [job.trainer.run for job in jobs]
    for run in runs:
        if runs.count(run) > 1:
            raise ConfigError(f"{path}: jobs: two of them write into the same run {run}; give each its own `run`")
    return Platform(config=config, jobs=jobs)


def _place_jobs(config: PlatformConfig | LocalConfig, path: Path) -> Iterator[TrainingJob]:
    references: Sequence[JobReference | LocalJobReference] = config.jobs
    for index, reference in enumerate(references):
        where = f"{path}: jobs[{index}]"
        job_path = _job_path(reference.job, path)
        if not _is_file(job_path):
            known = ", ".join(sorted(file.stem for file in JOBS_FOLDER.glob("*.yaml")))
            raise ConfigError(
                f"{where}.job: must be one of {known} or the path of a job file, "
                f"got {reference.job}, and {job_path} is no file; correct the name"
            )
        if not re.match(NAME_PATTERN, job_path.stem):
            raise ConfigError(
                f"{where}.job: a job's file name must match {NAME_PATTERN}, since pods are named after it, "
                f"got {job_path.stem}; rename the file"
            )
        try:
            job = JobConfig.load(job_path)
        except ConfigError as error:
            raise ConfigError(f"{error} (named by {where})") from None
        try:
            placed = config.place(job_path.stem, job, reference)  # type: ignore[arg-type]  # each config holds its own kind
            placed.check()
        except ConfigError as error:
            raise ConfigError(f"{where}.{error} (job {job_path})") from None
        yield placed


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long for the file system, or no path at all
        return False


def _job_path(job: str, platform_path: Path) -> Path:
    if "/" in job:
        return (platform_path.parent / job).resolve()
    return JOBS_FOLDER / f"{job}.yaml"
