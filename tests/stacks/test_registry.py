from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

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
