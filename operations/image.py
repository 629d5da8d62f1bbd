"""`make image`: have CodeBuild build and push the trainer's image, and follow what it says. It needs no Docker here."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from config.loader import chosen_path, load_config
from config.platform import PlatformConfig
from trainer.config import ConfigError

OUTPUTS = Path("outputs.json")
POLL_SECONDS = 5.0


def main() -> int:
    """Entry of `make image`."""
    parser = argparse.ArgumentParser(prog="python -m operations.image", description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", help="platform file")
    try:
        config = load_config(chosen_path(flag=parser.parse_args().config)).config
        if not isinstance(config, PlatformConfig):
            raise ConfigError(f"{config.name} is this machine and runs no image; name a platform on AWS")
        project, image = registry_outputs(OUTPUTS, config.name)
        session = boto3.Session(region_name=config.region)
        if image_exists(session.client("ecr"), image):
            print(f"{image} exists already")
            return 0
        status = build(session.client("codebuild"), session.client("logs"), project)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except (BotoCoreError, ClientError) as error:
        print(f"AWS: {error}; check the credentials and the region of the platform", file=sys.stderr)
        return 2
    print(f"{image} is built" if status == "SUCCEEDED" else f"the build ended as {status}; its log is above")
    return 0 if status == "SUCCEEDED" else 1


def registry_outputs(path: Path, platform: str) -> tuple[str, str]:
    """The build project and the image that the registry stack named.

    Raises:
        ConfigError: the stack is not in the outputs file.
    """
    try:
        outputs = json.loads(path.read_text(encoding="utf-8"))[f"{platform}-registry"]
        return outputs["ImageBuildProject"], outputs["TrainerImageUri"]
    except (OSError, ValueError, KeyError):
        raise ConfigError(
            f"{path}: must hold the outputs of {platform}-registry; run npx cdk deploy --all -c config=PATH"
        ) from None


def image_exists(ecr: Any, image: str) -> bool:
    """Whether the repository holds the image already. Its tag is the hash of what it is built from, and never moves."""
    repository, _, tag = image.partition("/")[2].rpartition(":")
    try:
        ecr.describe_images(repositoryName=repository, imageIds=[{"imageTag": tag}])
    except ecr.exceptions.ImageNotFoundException:
        return False
    return True


def build(codebuild: Any, logs: Any, project: str) -> str:
    """Start a build, print its log as it grows, and wait for its end.

    Returns:
        CodeBuild's status, `SUCCEEDED` if all went well.
    """
    build_id = codebuild.start_build(projectName=project)["build"]["id"]
    print(f"building in CodeBuild: {build_id}", flush=True)
    token: str | None = None
    while True:
        found = codebuild.batch_get_builds(ids=[build_id])["builds"][0]
        token = _print_log(logs, found.get("logs", {}), token)
        if found["buildStatus"] != "IN_PROGRESS":
            _print_log(logs, found.get("logs", {}), token)
            status: str = found["buildStatus"]
            return status
        time.sleep(POLL_SECONDS)


def _print_log(logs: Any, where: dict[str, Any], token: str | None) -> str | None:
    """Print what is new in the log, and say from where to go on."""
    if not where.get("groupName") or not where.get("streamName"):
        return token
    asked = {"logGroupName": where["groupName"], "logStreamName": where["streamName"], "startFromHead": True}
    try:
        answer = logs.get_log_events(**asked, **({"nextToken": token} if token else {}))
    except logs.exceptions.ResourceNotFoundException:
        return token  # the stream appears with its first line
    for event in answer["events"]:
        print(event["message"].rstrip(), flush=True)
    following: str = answer["nextForwardToken"]
    return following


if __name__ == "__main__":
    sys.exit(main())
