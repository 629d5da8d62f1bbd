"""The AWS emulator of the drill: its own environment, its own process, on a loopback port."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# https://pypi.org/project/ministack/: the one emulator found that runs the CLI's whole cycle without a container.
REQUIREMENT = "ministack==1.5.33"
NEEDED_PYTHON = (3, 12)
CANDIDATES = ("python3.14", "python3.13", "python3.12", "python3")
ACCOUNT = "000000000000"
STARTS_WITHIN_SECONDS = 60


def suitable_python() -> str | None:
    """A Python that the emulator runs on: the first on PATH, or of pyenv's, that is new enough."""
    found = [path for path in map(shutil.which, CANDIDATES) if path]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found += [str(path) for path in sorted(pyenv.glob("3.*/bin/python3"), reverse=True)]
    for path in found:
        asked = [path, "-c", f"import sys, venv, ensurepip; sys.exit(sys.version_info < {NEEDED_PYTHON})"]
        if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
            return path
    return None


def install(python: str, folder: Path) -> Path:
    """The emulator's program, in a virtual environment that is made once."""
    program = folder / "bin" / "ministack"
    if not program.is_file():
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", REQUIREMENT], check=True)
    return program


@contextmanager
def running(program: Path, folder: Path, region: str) -> Iterator[str]:
    """The emulator's address while it runs, with nothing in it.

    Raises:
        TimeoutError: it does not answer.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    environment = os.environ | {
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "MINISTACK_REGION": region,
        "HOME": str(folder),
        "TMPDIR": str(folder),
    }
    with (folder / "emulator.log").open("wb") as log:
        process = subprocess.Popen([str(program)], env=environment, stdout=log, stderr=log, cwd=folder)
        try:
            _wait(process, port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_SECONDS
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError as error:
            if time.monotonic() > deadline or process.poll() is not None:
                raise TimeoutError(f"the emulator does not answer on port {port}") from error
        time.sleep(0.1)


def environment(endpoint: str, region: str, folder: Path) -> dict[str, str]:
    """The environment by which the CDK CLI and boto3 talk to the emulator and to nothing else."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CDK_"))}
    return inherited | {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "drill",
        "AWS_SECRET_ACCESS_KEY": "drill",
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "CDK_HOME": str(folder / "cdk-home"),
        "CDK_DISABLE_CLI_TELEMETRY": "true",
        "CDK_DEFAULT_ACCOUNT": ACCOUNT,
    }
