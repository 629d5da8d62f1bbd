"""A kubectl that records what it is asked and answers from files, first on PATH; and an AWS on a loopback port."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from botocore.stub import Stubber
from moto.server import ThreadedMotoServer

REPOSITORY = Path(__file__).parents[2]

FAKE = f"""#!{sys.executable}
import json, pathlib, sys
here = pathlib.Path(__file__).parent
with (here / "calls.jsonl").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + chr(10))
if sys.argv[1] == "config":
    print((here / "cluster").read_text())
if sys.argv[1] == "get" and (here / "jobs").exists():
    print((here / "jobs").read_text())
refusals = here / "refusals"
if sys.argv[1] == "apply" and refusals.exists():
    left = refusals.read_text().splitlines()
    if left:
        refusals.write_text(chr(10).join(left[1:]))
        sys.exit(left[0])
"""


@dataclass(frozen=True)
class Kubectl:
    folder: Path

    def calls(self) -> list[list[str]]:
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def points_at(self, cluster: str) -> None:
        (self.folder / "cluster").write_text(cluster)

    def holds(self, job: str) -> None:
        (self.folder / "jobs").write_text(f"pytorchjob.kubeflow.org/{job}")

    def answers(self, text: str) -> None:
        (self.folder / "jobs").write_text(text)

    def refuses(self, *messages: str) -> None:
        (self.folder / "refusals").write_text("\n".join(messages))


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "kubectl"
    program.write_text(FAKE)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("PLATFORM_CONFIG", raising=False)
    fake = Kubectl(folder)
    fake.points_at("arn:aws:eks:us-east-2:111122223333:cluster/p5-capacity-block")
    return fake


def run(module: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"operations.{module}", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )


# Not one of the accounts that preflight refuses as an example's.
ACCOUNT = "210987654321"
REGION = "us-east-2"


def own_values(name: str = "p5-capacity-block") -> dict[str, Any]:
    """What a shipped platform's file says, with a user's own values in place of the examples."""
    text = (REPOSITORY / f"config/platforms/{name}.yaml").read_text(encoding="utf-8")
    for example, own in (
        ("111122223333", ACCOUNT),
        ("cr-0123456789abcdef0", "cr-0a1b2c3d4e5f60718"),
        ("203.0.113.0/24", "8.8.8.0/24"),
    ):
        text = text.replace(example, own)
    values: dict[str, Any] = yaml.safe_load(text)
    return values


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def aws(moto_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session of the account, which starts empty, on an AWS of our own."""
    for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_SESSION_TOKEN", "PLATFORM_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    monkeypatch.setenv("MOTO_ACCOUNT_ID", ACCOUNT)
    urllib.request.urlopen(urllib.request.Request(f"{moto_endpoint}/moto-api/reset", method="POST")).close()
    return boto3.Session(region_name=REGION)


def stubbed(service: str, *calls: tuple[str, dict[str, Any] | str, dict[str, Any] | None]) -> Any:
    """A client that expects these calls in turn: its method, the answer or an error's code, and what it must be asked.

    None expects nothing of the question. Both are checked against the service's own model.
    """
    client = boto3.client(service, region_name=REGION, aws_access_key_id="x", aws_secret_access_key="x")
    stubber = Stubber(client)
    for method, answer, asked in calls:
        if isinstance(answer, str):
            stubber.add_client_error(method, answer, expected_params=asked)
        else:
            stubber.add_response(method, answer, asked)
    stubber.activate()
    return client
