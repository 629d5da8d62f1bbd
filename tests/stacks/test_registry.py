from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.registry import BUILD_CONTEXT, build_context_files, build_context_hash
from tests.synthesis import Synthesized


def repository(platform: Synthesized) -> dict[str, Any]:
    return platform.one("registry", "AWS::ECR::Repository")


def test_the_repository_is_emptied_and_deleted_with_its_stack(platform: Synthesized) -> None:
    """A repository with one image fails the destroy, and the CDK keeps it unless told otherwise."""
    assert repository(platform)["Properties"]["EmptyOnDelete"] is True
    assert repository(platform)["DeletionPolicy"] == "Delete"


def test_images_are_scanned_and_their_tags_stay(platform: Synthesized) -> None:
    properties = repository(platform)["Properties"]
    assert properties["ImageScanningConfiguration"] == {"ScanOnPush": True}
    assert properties["ImageTagMutability"] == "IMMUTABLE"


def test_the_newest_images_are_kept_and_the_others_are_not(platform: Synthesized) -> None:
    rules = json.loads(repository(platform)["Properties"]["LifecyclePolicy"]["LifecyclePolicyText"])["rules"]
    last = max(rules, key=lambda rule: rule["rulePriority"])
    assert last["selection"]["tagStatus"] == "any"
    assert last["selection"]["countNumber"] == platform.config.registry.images_to_keep


def test_the_image_is_named_by_what_it_is_built_from(platform: Synthesized) -> None:
    parts = platform.templates["registry"]["Outputs"]["TrainerImageUri"]["Value"]["Fn::Join"][1]
    assert parts[-1] == f":{build_context_hash(BUILD_CONTEXT)}"
    assert variables(platform)["IMAGE_TAG"] == build_context_hash(BUILD_CONTEXT)


def project(platform: Synthesized) -> dict[str, Any]:
    properties: dict[str, Any] = platform.one("registry", "AWS::CodeBuild::Project")["Properties"]
    return properties


def variables(platform: Synthesized) -> dict[str, Any]:
    return {v["Name"]: v["Value"] for v in project(platform)["Environment"]["EnvironmentVariables"]}


def test_a_build_gets_the_very_files_that_its_tag_is_the_hash_of(platform: Synthesized) -> None:
    """Docker would build other files under the same tag, which nobody could tell from outside."""
    (folder,) = [path for path in platform.folder.glob("asset.*") if (path / "Dockerfile").exists()]
    assert build_context_hash(folder) == build_context_hash(BUILD_CONTEXT)
    assert folder.name.removeprefix("asset.") in project(platform)["Source"]["Location"]


def test_a_build_may_read_its_context_push_one_image_and_log(platform: Synthesized) -> None:
    policy = platform.one("registry", "AWS::IAM::Policy")
    by_service: dict[str, list[Any]] = {}
    for statement in policy["Properties"]["PolicyDocument"]["Statement"]:
        actions = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        by_service.setdefault(actions[0].partition(":")[0], []).append(statement["Resource"])
        if statement["Resource"] == "*":
            assert actions == ["ecr:GetAuthorizationToken"]
    assert set(by_service) == {"s3", "logs", "ecr"}


def test_builds_log_into_a_group_of_the_stack_and_never_race(platform: Synthesized) -> None:
    logs = project(platform)["LogsConfig"]["CloudWatchLogs"]
    assert logs["GroupName"]["Ref"] in platform.resources("registry", "AWS::Logs::LogGroup")
    assert project(platform)["ConcurrentBuildLimit"] == 1


@pytest.fixture
def build(tmp_path: Path, shipped: Callable[[str], Synthesized]) -> Callable[..., tuple[int, list[str]]]:
    """The project's own script, run with programs that write down how they were called."""
    spec = yaml.safe_load(project(shipped("p5-reservation"))["Source"]["BuildSpec"])
    (script,) = spec["phases"]["build"]["commands"]

    def run(*, is_there: bool, failing: str = "none") -> tuple[int, list[str]]:
        log = tmp_path / "calls"
        fake = f'#!/bin/bash\necho "${{0##*/}} $*" >> {log}\n'
        for name in ("aws", "docker"):
            status = f'[[ "$*" != *describe-images* ]] || exit {0 if is_there else 254}\n[[ "$1" != {failing} ]]\n'
            (tmp_path / name).write_text(fake + status)
            (tmp_path / name).chmod(0o755)
        environment = {
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "IMAGE_TAG": "0123",
            "REPOSITORY": "p5/trainer",
            "REPOSITORY_URI": "1.dkr.ecr.us-east-2.amazonaws.com/p5/trainer",
        }
        done = subprocess.run(["bash", "-c", script], env=environment, check=False, capture_output=True)
        # The two sides of a pipe start in either order.
        return done.returncode, sorted(log.read_text().splitlines())

    return run


def test_an_image_that_is_there_is_not_built_again(build: Callable[..., tuple[int, list[str]]]) -> None:
    """A second push of an immutable tag fails after ten minutes of building."""
    status, calls = build(is_there=True)
    assert status == 0
    assert calls == ["aws ecr describe-images --repository-name p5/trainer --image-ids imageTag=0123"]


def test_an_image_that_is_missing_is_built_and_pushed(build: Callable[..., tuple[int, list[str]]]) -> None:
    status, calls = build(is_there=False)
    assert status == 0
    image = "1.dkr.ecr.us-east-2.amazonaws.com/p5/trainer:0123"
    assert f"docker build --platform linux/amd64 --tag {image} ." in calls
    assert f"docker push {image}" in calls
    assert "docker login --username AWS --password-stdin 1.dkr.ecr.us-east-2.amazonaws.com" in calls


@pytest.mark.parametrize("step", ["login", "build", "push"])
def test_a_step_that_fails_fails_the_build_and_ends_it(build: Callable[..., tuple[int, list[str]]], step: str) -> None:
    status, calls = build(is_there=False, failing=step)
    assert status != 0
    later = {"login": ["build", "push"], "build": ["push"], "push": []}[step]
    assert not [call for call in calls if call.split()[1] in later]


@pytest.fixture
def context(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text("print(1)\n")
    (tmp_path / "requirements.txt").write_text("torch\n")
    return tmp_path


def test_the_hash_changes_with_a_byte_and_with_a_name(context: Path) -> None:
    hashes = [build_context_hash(context)]
    (context / "package" / "module.py").write_text("print(2)\n")
    hashes.append(build_context_hash(context))
    (context / "package" / "module.py").rename(context / "package" / "other.py")
    hashes.append(build_context_hash(context))
    assert len(set(hashes)) == 3


def test_the_hash_is_of_contents_and_not_of_times_modes_or_leftovers(context: Path) -> None:
    """Two machines with one commit must agree, or each builds an image that the other does not find."""
    before = build_context_hash(context)
    module = context / "package" / "module.py"
    os.utime(module, (0, 0))
    module.chmod(0o600)
    (context / "package" / "__pycache__").mkdir()
    (context / "package" / "__pycache__" / "module.cpython-311.pyc").write_bytes(b"\0")
    assert build_context_hash(context) == before


def test_bytes_cannot_wander_from_one_file_to_the_next_unseen(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, contents in ((first, ("ab", "c")), (second, ("a", "bc"))):
        folder.mkdir()
        for name, content in zip(("x", "y"), contents, strict=True):
            (folder / name).write_text(content)
    assert build_context_hash(first) != build_context_hash(second)


def test_the_trainer_itself_is_in_the_context() -> None:
    names = {path.relative_to(BUILD_CONTEXT).as_posix() for path in build_context_files(BUILD_CONTEXT)}
    assert {"__main__.py", "config.py", "requirements.txt"} <= names
