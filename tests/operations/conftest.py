"""A kubectl that records what it is asked and answers from files, first on PATH."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

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
