"""outputs.json comes from the deployed stacks, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.outputs import PlatformOutputs
from config.names import STACKS
from operations import outputs
from tests.operations.conftest import own_values

PLATFORM = "p5-capacity-block"
VALUES: dict[str, dict[str, str]] = {
    "cluster": {"ClusterName": PLATFORM},
    "storage": {
        "FileSystemId": "fs-0a1b2c3d4e5f60718",
        "FileSystemDnsName": "fs-0a1b2c3d4e5f60718.fsx.us-east-2.amazonaws.com",
        "FileSystemMountName": "abcdefgh",
        "BucketName": "bucket",
    },
    "registry": {"TrainerImageUri": "r/trainer:1", "ImageBuildProject": "build"},
}


def deploy(aws: Any, *stacks: str) -> None:
    for stack in stacks:
        group = {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": stack}}
        values = {key: {"Value": value} for key, value in VALUES.get(stack, {}).items()}
        body = json.dumps({"Resources": {"Group": group}, "Outputs": values})
        aws.client("cloudformation").create_stack(StackName=f"{PLATFORM}-{stack}", TemplateBody=body)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "platform.yaml").write_text(yaml.safe_dump({**own_values(), "jobs": []}), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["outputs", "--config", "platform.yaml"])
    return tmp_path


def test_the_file_is_what_the_cdk_cli_writes_and_the_charts_read_it(aws: Any, folder: Path) -> None:
    deploy(aws, *STACKS)
    assert outputs.main() == 0
    text = (folder / "outputs.json").read_text(encoding="utf-8")
    assert json.loads(text) == {f"{PLATFORM}-{stack}": values for stack, values in VALUES.items()}
    assert text == json.dumps(json.loads(text), indent=2) + "\n"
    assert PlatformOutputs.load(folder / "outputs.json", PLATFORM).trainer_image_uri == "r/trainer:1"


def test_a_missing_stack_is_refused_and_the_file_left_as_it_was(
    aws: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "outputs.json").write_text("{}", encoding="utf-8")
    deploy(aws, "network", "cluster", "storage", "registry")
    assert outputs.main() == 2
    assert "p5-capacity-block-node-groups: must be deployed, got not deployed" in capsys.readouterr().err
    assert (folder / "outputs.json").read_text(encoding="utf-8") == "{}"


def test_aws_out_of_reach_is_one_sentence(
    aws: Any, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "session_of", lambda _config: aws)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    assert outputs.main() == 2
    error = capsys.readouterr().err
    assert error.startswith("AWS: ")
    assert error.count("\n") == 1
    assert not (folder / "outputs.json").exists()
