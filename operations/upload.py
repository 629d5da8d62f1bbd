"""`make upload`: a folder of data or of a model into the platform's bucket, from where FSx shows it to every pod.

A file is left out if the bucket holds it in the same size and at least as new; nothing in the bucket is removed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from botocore.config import Config

from operations.aws import AWS_ERRORS, pages, platform_on_aws, said, session_of
from operations.outputs import OUTPUTS
from trainer.config import ConfigError

# The folders that the file system imports; what it exports does not come back to it.
TARGET = re.compile(r"(data|models)(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+")
FILES_AT_A_TIME = 8
CONNECTIONS = 32
SECONDS_BETWEEN_LINES = 2.0
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html
LONGEST_KEY = 1024


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of the folder, the key that it gets, and what decides whether it goes: bytes and time of change."""

    path: Path
    key: str
    size: int
    changed: datetime


def main() -> int:
    """Entry of `make upload`."""
    parser = argparse.ArgumentParser(prog="python -m operations.upload", description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", help="platform file")
    parser.add_argument("--from", dest="source", required=True, help="folder to upload")
    parser.add_argument("--to", dest="target", required=True, help="data/NAME or models/NAME")
    arguments = parser.parse_args()
    try:
        _, config = platform_on_aws(arguments.config)
        files = local_files(arguments.source, arguments.target)
        bucket = bucket_of(OUTPUTS, config.name)
        s3 = session_of(config).client("s3", config=Config(max_pool_connections=CONNECTIONS))
        missing = missing_files(files, s3, bucket, arguments.target)
        print(f"{len(missing)} of {len(files)} files go to s3://{bucket}/{arguments.target}", flush=True)
        upload(missing, s3, bucket)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except AWS_ERRORS as error:
        print(f"AWS: {said(error)}; start the upload again, which goes on where this one ended", file=sys.stderr)
        return 2
    print(f"pods find them in {config.storage.mount_path}/{arguments.target}")
    return 0


def bucket_of(path: Path, platform: str) -> str:
    """The platform's bucket.

    Raises:
        ConfigError: the outputs file does not name it.
    """
    try:
        name = json.loads(path.read_text(encoding="utf-8"))[f"{platform}-storage"]["BucketName"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{path}: must name the bucket of {platform}, and does not; run make outputs, or deploy first"
        ) from None
    return str(name)


def local_files(source: str, target: str) -> list[LocalFile]:
    """Every file of a folder, with its key below `target`, in order.

    Raises:
        ConfigError: `target` is not imported by the file system, or the folder is none, is empty or cannot be read.
    """
    if not TARGET.fullmatch(target):
        raise ConfigError(
            f"TO: must be data/NAME or models/NAME, which the file system shows, got {target or 'nothing'}; "
            "write one of the two, with letters, digits, dots, dashes and underscores"
        )
    folder = Path(source)
    if not source or not folder.is_dir():
        raise ConfigError(f"FROM: must be a folder, got {source or 'nothing'}; name one that exists")
    files = []
    try:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                status = path.stat()
                key = f"{target}/{path.relative_to(folder).as_posix()}"
                _check_key(key)
                # S3 tells its own times in whole seconds.
                changed = datetime.fromtimestamp(int(status.st_mtime), tz=UTC)
                files.append(LocalFile(path, key, status.st_size, changed))
    except OSError as error:
        raise ConfigError(f"FROM: cannot read {error.filename} ({error.strerror}); make it readable") from None
    if not files:
        raise ConfigError(f"FROM: {folder} holds no file; name the folder that the files lie in")
    return files


def _check_key(key: str) -> None:
    try:
        length = len(key.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"FROM: the name of {key!r} is not UTF-8, and S3 takes no other; rename the file") from None
    if length > LONGEST_KEY:
        raise ConfigError(f"FROM: {key[:80]}… has {length} bytes, and S3 takes {LONGEST_KEY}; shorten the path")


def missing_files(files: Sequence[LocalFile], s3: Any, bucket: str, target: str) -> list[LocalFile]:
    """Files that the bucket does not hold in the same size and at least as new."""
    there = {each["Key"]: each for each in pages(s3, "list_objects_v2", "Contents", Bucket=bucket, Prefix=f"{target}/")}
    return [
        file
        for file in files
        if (known := there.get(file.key)) is None or known["Size"] != file.size or known["LastModified"] < file.changed
    ]


class Progress:
    """How much has gone, told every few seconds. boto3 calls it from its own threads."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.sent = 0
        self._lock = threading.Lock()
        self._told = time.monotonic()

    def __call__(self, count: int) -> None:
        """Add bytes that have gone."""
        with self._lock:
            self.sent += count
            if time.monotonic() - self._told >= SECONDS_BETWEEN_LINES:
                self._told = time.monotonic()
                self.tell()

    def tell(self) -> None:
        """Print how much has gone."""
        share = 100 * self.sent // self.total if self.total else 100
        print(f"{self.sent / 1e6:,.1f} of {self.total / 1e6:,.1f} MB ({share} %)", flush=True)


def upload(files: Sequence[LocalFile], s3: Any, bucket: str) -> None:
    """Put the files into the bucket, several at a time.

    Raises:
        ConfigError: a file cannot be read, or changed while it was.
    """
    progress = Progress(sum(file.size for file in files))
    with ThreadPoolExecutor(max_workers=FILES_AT_A_TIME) as pool:
        futures = {
            pool.submit(s3.upload_file, str(file.path), bucket, file.key, Callback=progress): file for file in files
        }
        try:
            for future in as_completed(futures):
                future.result()
        except OSError as error:
            raise ConfigError(f"FROM: cannot read {error.filename} ({error.strerror}); make it readable") from None
        finally:
            # After a failure no further file is begun.
            for future in futures:
                future.cancel()
    if files:
        progress.tell()


if __name__ == "__main__":
    sys.exit(main())
