"""The fabric check takes the nodes that there are, tells how it ended, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.operations.conftest import REPOSITORY, Kubectl, run

PLATFORM = REPOSITORY / "config/platforms/p5-capacity-block.yaml"


def ended(kind: str) -> str:
    """A job as it stands at its end; the condition that it was created stays."""
    kinds = ["Created", "Running", kind]
    return json.dumps({"status": {"conditions": [{"type": each, "status": "True"} for each in kinds]}})


@pytest.fixture
def platform(tmp_path: Path) -> str:
    """The platform while its block is active, with two nodes, deployed."""
    values = yaml.safe_load(PLATFORM.read_text(encoding="utf-8"))
    values["node_groups"][0]["desired_size"] = 2
    values["node_groups"][0]["reservation"]["active"] = True
    (tmp_path / "platform.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    sample = json.loads((REPOSITORY / "charts/sample_outputs.json").read_text(encoding="utf-8"))
    (tmp_path / "outputs.json").write_text(json.dumps({"p5-capacity-block-storage": sample["sample"]}))
    return "platform.yaml"


@pytest.mark.parametrize(("verdict", "status"), [("Succeeded", 0), ("Failed", 1)])
def test_the_check_ends_as_its_job_does_and_the_job_goes(
    tmp_path: Path, kubectl: Kubectl, platform: str, verdict: str, status: int
) -> None:
    kubectl.answers(ended(verdict))
    done = run("fabric_check", "--config", platform, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert [call[0] for call in kubectl.calls()] == ["config", "delete", "apply", "get", "logs", "delete"]
    assert not (tmp_path / "dist").exists()


def test_a_job_that_cannot_be_applied_leaves_the_nodes_alone(tmp_path: Path, kubectl: Kubectl, platform: str) -> None:
    kubectl.refuses("denied the request: bad job")
    done = run("fabric_check", "--config", platform, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "kubectl apply failed: denied the request: bad job\n")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--nodes", "1"], "--nodes: must be 2 to 2, the desired_size of node group p5, got 1"),
        (["--nodes", "3"], "--nodes: must be 2 to 2, the desired_size of node group p5, got 3"),
        (["--nodes", "two"], "--nodes: must be 2 to 2, the desired_size of node group p5, got two"),
        (["--group", "p6"], "--group: must be one of p5, got p6"),
    ],
)
def test_nodes_that_there_are_not_are_refused(
    tmp_path: Path, kubectl: Kubectl, platform: str, options: list[str], sentence: str
) -> None:
    done = run("fabric_check", "--config", platform, *options, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(sentence)
    assert kubectl.calls() == []


def test_a_group_at_zero_and_a_sample_are_refused(tmp_path: Path, kubectl: Kubectl, platform: str) -> None:
    done = run("fabric_check", "--config", str(PLATFORM), cwd=tmp_path)
    assert "got 0; traffic needs two nodes, so scale the group up" in done.stderr
    (tmp_path / "outputs.json").write_text((REPOSITORY / "charts/sample_outputs.json").read_text(encoding="utf-8"))
    done = run("fabric_check", "--config", platform, cwd=tmp_path)
    assert "is a sample, which names no image" in done.stderr
    assert kubectl.calls() == []
