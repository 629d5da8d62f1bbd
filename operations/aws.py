"""The account and region of a platform, and how AWS's own errors become a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
from boto3.exceptions import Boto3Error
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from config.loader import chosen_path, load_config
from config.platform import PlatformConfig
from trainer.config import ConfigError

# What any call may raise: it did not get through, or it was answered with an error, or by something that is not AWS.
AWS_ERRORS = (Boto3Error, BotoCoreError, ClientError, ResponseParserError)
# States of a stack that was deployed, and can be again:
# https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/view-stack-events.html
HEALTHY = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE")


def platform_on_aws(flag: str | None) -> tuple[Path, PlatformConfig]:
    """The platform file that the user chose, and what it says.

    Raises:
        ConfigError: none was chosen, it is refused, or it is of this machine.
    """
    path = chosen_path(flag=flag)
    config = load_config(path).config
    if not isinstance(config, PlatformConfig):
        raise ConfigError(f"{path}: {config.name} is this machine and has nothing on AWS; name a platform on AWS")
    return path, config


def session_of(config: PlatformConfig) -> boto3.Session:
    """A session in the platform's region, whose credentials are those of its account.

    Raises:
        ConfigError: there are no credentials that AWS accepts, or they are another account's.
    """
    session = boto3.Session(region_name=config.region)
    try:
        account = session.client("sts").get_caller_identity()["Account"]
    except AWS_ERRORS as error:
        raise ConfigError(
            f"credentials: AWS accepts none for account {config.account} ({said(error)}); "
            "log in (aws sso login), or set AWS_PROFILE"
        ) from None
    if account != config.account:
        raise ConfigError(
            f"credentials: must be those of account {config.account}, which the platform file names, got {account}; "
            "set AWS_PROFILE, or correct `account`"
        )
    return session


def code_of(error: ClientError) -> str:
    """The code of an error that AWS answered with, such as `AccessDenied`."""
    return str(error.response.get("Error", {}).get("Code", ""))


def is_denied(error: ClientError) -> bool:
    """Whether the caller may not make the call. Every service spells it in its own way."""
    return code_of(error) in {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403", "Forbidden"}


def said(error: Exception) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split())


def pages(client: Any, operation: str, key: str, **arguments: Any) -> list[Any]:
    """Every item of a listing that comes in pages.

    Args:
        client: a boto3 client.
        operation: name of its method.
        key: where a page holds its items.
        **arguments: of the method.
    """
    return [item for page in client.get_paginator(operation).paginate(**arguments) for item in page.get(key) or []]


def find_stack(cloudformation: Any, name: str) -> dict[str, Any] | None:
    """A stack as CloudFormation describes it, or None where there is none of that name."""
    try:
        stack: dict[str, Any] = cloudformation.describe_stacks(StackName=name)["Stacks"][0]
    except ClientError as error:
        if code_of(error) == "ValidationError" and "does not exist" in str(error):
            return None
        raise
    return stack
