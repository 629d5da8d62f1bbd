from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from operations import image
from trainer.config import ConfigError

URI = "111122223333.dkr.ecr.us-east-2.amazonaws.com/p5/trainer:0123456789abcdef"


def client(service: str) -> Any:
    return boto3.client(service, region_name="us-east-2", aws_access_key_id="x", aws_secret_access_key="x")


def test_an_image_that_exists_is_not_built_again() -> None:
    ecr = client("ecr")
    with Stubber(ecr) as stub:
        expected = {"repositoryName": "p5/trainer", "imageIds": [{"imageTag": "0123456789abcdef"}]}
        stub.add_response("describe_images", {"imageDetails": []}, expected)
        assert image.image_exists(ecr, URI)
        stub.add_client_error("describe_images", "ImageNotFoundException")
        assert not image.image_exists(ecr, URI)


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED"])
def test_a_build_is_followed_to_its_end_and_its_log_printed_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setattr(image, "POLL_SECONDS", 0.0)
    codebuild, logs = client("codebuild"), client("logs")
    where = {"groupName": "/aws/codebuild/p5", "streamName": "s"}
    asked = {"logGroupName": "/aws/codebuild/p5", "logStreamName": "s", "startFromHead": True}
    with Stubber(codebuild) as builds, Stubber(logs) as events:
        builds.add_response("start_build", {"build": {"id": "p5:1"}}, {"projectName": "p5-image"})
        builds.add_response("batch_get_builds", {"builds": [{"buildStatus": "IN_PROGRESS"}]}, {"ids": ["p5:1"]})
        builds.add_response("batch_get_builds", {"builds": [{"buildStatus": status, "logs": where}]}, {"ids": ["p5:1"]})
        events.add_response("get_log_events", {"events": [{"message": "step 1\n"}], "nextForwardToken": "a"}, asked)
        events.add_response("get_log_events", {"events": [], "nextForwardToken": "a"}, asked | {"nextToken": "a"})
        assert image.build(codebuild, logs, "p5-image") == status
    assert capsys.readouterr().out.count("step 1") == 1


@pytest.mark.parametrize("content", [None, "{}", "[", '{"other-registry": {}}'])
def test_a_registry_that_is_not_deployed_is_one_sentence(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "outputs.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match="must hold the outputs of p5-registry; run npx cdk deploy --all"):
        image.registry_outputs(path, "p5")


def test_the_project_and_the_image_come_from_the_registry_stack(tmp_path: Path) -> None:
    path = tmp_path / "outputs.json"
    path.write_text(json.dumps({"p5-registry": {"ImageBuildProject": "b", "TrainerImageUri": URI}}), encoding="utf-8")
    assert image.registry_outputs(path, "p5") == ("b", URI)
