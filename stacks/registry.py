"""RegistryStack: the ECR repository of the trainer's image, and what builds it without a Docker of one's own."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import yaml
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3_assets as assets
from constructs import Construct

from config.platform import RegistryConfig

# Docker with BuildKit and the AWS CLI: https://docs.aws.amazon.com/codebuild/latest/userguide/build-env-ref-available.html
BUILD_IMAGE = "aws/codebuild/amazonlinux-x86_64-standard:5.0"
BUILD_MINUTES = 60
BUILD_CONTEXT = Path(__file__).parent.parent / "trainer"

# https://docs.aws.amazon.com/AmazonECR/latest/userguide/image-push-iam.html
PUSH_ACTIONS = [
    "ecr:BatchCheckLayerAvailability",
    "ecr:BatchGetImage",
    "ecr:CompleteLayerUpload",
    "ecr:DescribeImages",
    "ecr:InitiateLayerUpload",
    "ecr:PutImage",
    "ecr:UploadLayerPart",
]
# A tag never moves, so an image that is there is the one that would be built.
BUILD_SCRIPT = """\
if aws ecr describe-images --repository-name "${REPOSITORY}" --image-ids "imageTag=${IMAGE_TAG}"; then
  echo "${REPOSITORY}:${IMAGE_TAG} is there already"
else
  aws ecr get-login-password | docker login --username AWS --password-stdin "${REPOSITORY_URI%%/*}" &&
  docker build --platform linux/amd64 --tag "${REPOSITORY_URI}:${IMAGE_TAG}" . &&
  docker push "${REPOSITORY_URI}:${IMAGE_TAG}"
fi
"""
BUILD_SPEC = {"version": 0.2, "env": {"shell": "bash"}, "phases": {"build": {"commands": [BUILD_SCRIPT]}}}


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
        image_tag = build_context_hash(BUILD_CONTEXT)
        image_uri = self.repository.repository_uri_for_tag(image_tag)
        build = ImageBuild(self, "ImageBuild", repository=self.repository, image_tag=image_tag)
        cdk.CfnOutput(self, "TrainerImageUri", value=image_uri)
        cdk.CfnOutput(self, "ImageBuildProject", value=build.project.ref)


class ImageBuild(Construct):
    """A CodeBuild project that builds one image from one state of the build context, whenever it is started."""

    def __init__(self, scope: Construct, id_: str, *, repository: ecr.Repository, image_tag: str) -> None:
        super().__init__(scope, id_)
        context = assets.Asset(
            self, "Context", path=str(BUILD_CONTEXT), asset_hash=image_tag, exclude=["**/__pycache__"]
        )
        log_group = logs.CfnLogGroup(self, "Logs", retention_in_days=30)
        log_group.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("codebuild.amazonaws.com"))
        permissions = iam.Policy(
            self,
            "Permissions",
            roles=[role],
            statements=[
                iam.PolicyStatement(
                    actions=["s3:GetObject", "s3:GetObjectVersion"],
                    resources=[context.bucket.arn_for_objects(context.s3_object_key)],
                ),
                iam.PolicyStatement(
                    actions=["logs:CreateLogStream", "logs:PutLogEvents"], resources=[log_group.attr_arn]
                ),
                # ECR gives tokens for the account, not for a repository.
                iam.PolicyStatement(actions=["ecr:GetAuthorizationToken"], resources=["*"]),
                iam.PolicyStatement(actions=PUSH_ACTIONS, resources=[repository.repository_arn]),
            ],
        )
        variables = {
            "IMAGE_TAG": image_tag,
            "REPOSITORY": repository.repository_name,
            "REPOSITORY_URI": repository.repository_uri,
        }
        self.project = codebuild.CfnProject(
            self,
            "Project",
            description="The image of training pods",
            service_role=role.role_arn,
            artifacts=codebuild.CfnProject.ArtifactsProperty(type="NO_ARTIFACTS"),
            source=codebuild.CfnProject.SourceProperty(
                type="S3",
                location=f"{context.s3_bucket_name}/{context.s3_object_key}",
                build_spec=yaml.safe_dump(BUILD_SPEC, sort_keys=False),
            ),
            environment=codebuild.CfnProject.EnvironmentProperty(
                type="LINUX_CONTAINER",
                compute_type="BUILD_GENERAL1_LARGE",
                image=BUILD_IMAGE,
                # Docker runs inside the build's own container.
                privileged_mode=True,
                environment_variables=[
                    codebuild.CfnProject.EnvironmentVariableProperty(name=name, value=value)
                    for name, value in variables.items()
                ],
            ),
            logs_config=codebuild.CfnProject.LogsConfigProperty(
                cloud_watch_logs=codebuild.CfnProject.CloudWatchLogsConfigProperty(
                    status="ENABLED", group_name=log_group.ref
                )
            ),
            # Two builds of one tag race for it, and the second fails.
            concurrent_build_limit=1,
            timeout_in_minutes=BUILD_MINUTES,
        )
        # A build that starts before its role has them is refused its source.
        self.project.node.add_dependency(permissions)


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
