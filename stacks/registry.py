"""RegistryStack: the ECR repository of the trainer's image."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ecr as ecr
from constructs import Construct

from config.platform import RegistryConfig

BUILD_CONTEXT = Path(__file__).parent.parent / "trainer"


class RegistryStack(cdk.Stack):
    """A repository whose images are named by the hash of what they were built from."""

    def __init__(self, scope: Construct, id_: str, *, platform: str, config: RegistryConfig, **kwargs: Any) -> None:
        super().__init__(scope, id_, **kwargs)
        self.repository = ecr.Repository(
            self,
            "Repository",
            repository_name=f"{platform}/trainer",
            image_scan_on_push=True,
            # A tag that can move lets one pod of a job run other code than the next.
            image_tag_mutability=ecr.TagMutability.IMMUTABLE,
            lifecycle_rules=[
                ecr.LifecycleRule(
                    rule_priority=1,
                    tag_status=ecr.TagStatus.UNTAGGED,
                    max_image_age=cdk.Duration.days(1),
                    description="Leftovers of builds that failed",
                ),
                ecr.LifecycleRule(
                    rule_priority=2,
                    tag_status=ecr.TagStatus.ANY,
                    max_image_count=config.images_to_keep,
                    description="The newest images",
                ),
            ],
            empty_on_delete=True,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        cdk.CfnOutput(
            self, "TrainerImageUri", value=self.repository.repository_uri_for_tag(build_context_hash(BUILD_CONTEXT))
        )


def build_context_files(folder: Path) -> list[Path]:
    """The files that an image is built from, in order, without what Python leaves beside them."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def build_context_hash(folder: Path) -> str:
    """Sixteen hexadecimal digits that change when a name or a byte of the build context does."""
    digest = hashlib.sha256()
    for path in build_context_files(folder):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]
