"""Keeps a second training out of a run's folder: two writers would delete each other's checkpoints."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import TextIO

from trainer.config import ConfigError


def lock(folder: Path, run: str) -> TextIO:
    """Take the run for this process. The kernel gives it back when the returned file is closed or the process ends.

    Lustre keeps such locks for all nodes where it is mounted with `flock`, as the chart mounts it:
    https://docs.aws.amazon.com/fsx/latest/LustreGuide/mount-fs-auto-mount-onreboot.html

    Raises:
        ConfigError: another process has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / "lock").open("a", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(
            f"run: {run} is being trained by another process in {folder}; wait for it, end it, or give this training "
            "another `run`"
        ) from None
    except OSError as error:
        file.close()
        raise ConfigError(
            f"shared_dir: must be on a file system that keeps locks, and {folder} is not ({error.strerror}); "
            "mount Lustre with the option flock"
        ) from None
    return file
