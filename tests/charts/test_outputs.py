"""Outputs of another deployment, or of half of one, never become manifests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from charts.outputs import PlatformOutputs
from config.names import STACKS
from tests.charts.synthesis import SAMPLE_OUTPUTS
from trainer.config import ConfigError

SAMPLE = json.loads(SAMPLE_OUTPUTS.read_text(encoding="utf-8"))["sample"]


def deployed(platform: str) -> dict[str, dict[str, str]]:
    """What `cdk deploy --all` writes: the stacks that have outputs."""
    storage = {key: value for key, value in SAMPLE.items() if key.startswith("FileSystem")}
    return {
        f"{platform}-cluster": {"ClusterName": platform},
        f"{platform}-storage": storage,
        f"{platform}-registry": {"TrainerImageUri": SAMPLE["TrainerImageUri"]},
    }


def write(folder: Path, content: Any) -> Path:
    path = folder / "outputs.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_a_platforms_own_outputs_are_read(tmp_path: Path) -> None:
    outputs = PlatformOutputs.load(write(tmp_path, deployed("p5")), "p5")
    assert outputs.file_system_id == SAMPLE["FileSystemId"]
    assert outputs.file_system_dns_name == SAMPLE["FileSystemDnsName"]
    assert outputs.file_system_mount_name == SAMPLE["FileSystemMountName"]
    assert outputs.trainer_image_uri == SAMPLE["TrainerImageUri"]
    assert not outputs.is_sample


def test_every_stack_of_the_platform_may_have_outputs(tmp_path: Path) -> None:
    content: dict[str, dict[str, str]] = {f"p5-{stack}": {} for stack in STACKS} | deployed("p5")
    assert not PlatformOutputs.load(write(tmp_path, content), "p5").is_sample


def test_the_sample_says_that_it_is_one() -> None:
    assert PlatformOutputs.load(SAMPLE_OUTPUTS, "any").is_sample


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (deployed("p6"), "must hold the outputs of p5 alone, got those of p6-cluster; run"),
        (deployed("p5-block"), "must hold the outputs of p5 alone, got those of p5-block-cluster; run"),
        (deployed("p5") | deployed("p6"), "must hold the outputs of p5 alone, got those of p6-cluster; run"),
        (deployed("p5") | {"sample": SAMPLE}, "must hold the outputs of p5 alone, got those of sample; run"),
        (
            {"p5-cluster": {"ClusterName": "p5"}},
            "FileSystemId, FileSystemDnsName, FileSystemMountName, TrainerImageUri",
        ),
        ({}, "is missing, since the last deployment wrote only some stacks; run"),
        (deployed("p5") | {"p5-registry": {"TrainerImageUri": 3}}, "TrainerImageUri is missing"),
        ("{", "must be what cdk deploy wrote, got something unreadable"),
        ("[]", "must map stacks to their outputs, as cdk deploy wrote it, got other JSON; deploy again"),
        ('{"p5-storage": "fs-1"}', "must map stacks to their outputs, as cdk deploy wrote it, got other JSON"),
    ],
)
def test_anything_else_is_refused_in_one_sentence_that_says_what_to_run(
    tmp_path: Path, content: Any, expected: str
) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        PlatformOutputs.load(path, "p5")
    assert str(caught.value).startswith(f"{path}: ")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_deployment_the_sentence_names_both_ways_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        PlatformOutputs.load(tmp_path / "outputs.json", "p5")
    assert "npx cdk deploy --all -c config=PATH" in str(caught.value)
    assert "--outputs charts/sample_outputs.json" in str(caught.value)


def test_a_folder_or_binary_in_its_place_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, binary):
        with pytest.raises(ConfigError, match="something unreadable"):
            PlatformOutputs.load(path, "p5")
