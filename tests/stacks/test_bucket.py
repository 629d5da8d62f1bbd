from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.synthesis import Synthesized


def bucket(platform: Synthesized) -> dict[str, Any]:
    return platform.one("storage", "AWS::S3::Bucket")


def test_the_bucket_is_closed_to_the_public_and_to_plain_http(platform: Synthesized) -> None:
    assert set(bucket(platform)["Properties"]["PublicAccessBlockConfiguration"].values()) == {True}
    policy = platform.one("storage", "AWS::S3::BucketPolicy")["Properties"]["PolicyDocument"]
    refusals = [statement for statement in policy["Statement"] if statement["Effect"] == "Deny"]
    assert [refusal["Condition"] for refusal in refusals] == [{"Bool": {"aws:SecureTransport": "false"}}]


def test_a_kept_bucket_needs_no_key_that_goes_with_the_platform(platform: Synthesized) -> None:
    """Objects under a deleted key are lost, however long the bucket is kept."""
    (rule,) = bucket(platform)["Properties"]["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    assert not platform.resources("storage", "AWS::KMS::Key")


def test_a_wrong_deletion_can_be_undone_for_a_week_and_costs_nothing_after(platform: Synthesized) -> None:
    """Whatever is removed from /fsx/runs is removed from the bucket too."""
    assert bucket(platform)["Properties"]["VersioningConfiguration"] == {"Status": "Enabled"}
    rules = bucket(platform)["Properties"]["LifecycleConfiguration"]["Rules"]
    assert [r["NoncurrentVersionExpiration"] for r in rules if "NoncurrentVersionExpiration" in r] == [
        {"NoncurrentDays": 7}
    ]


def test_parts_of_broken_uploads_do_not_pile_up(platform: Synthesized) -> None:
    """They are in no listing, and bill like any object."""
    rules = bucket(platform)["Properties"]["LifecycleConfiguration"]["Rules"]
    assert [rule for rule in rules if "AbortIncompleteMultipartUpload" in rule and rule["Status"] == "Enabled"]


def test_the_bucket_outlives_a_destroy_where_the_config_says_so(platform: Synthesized) -> None:
    kept = platform.config.teardown == "retain"
    assert bucket(platform)["DeletionPolicy"] == ("Retain" if kept else "Delete")
    assert bucket(platform)["UpdateReplacePolicy"] == ("Retain" if kept else "Delete")


def test_what_empties_the_bucket_logs_into_a_group_of_the_stack(shipped: Callable[[str], Synthesized]) -> None:
    """Lambda makes a group of its own otherwise, which stays for ever."""
    platform = shipped("p5-4xlarge-on-demand")
    function = platform.one("storage", "AWS::Lambda::Function")["Properties"]
    group = platform.resources("storage", "AWS::Logs::LogGroup")[function["LoggingConfig"]["LogGroup"]["Ref"]]
    assert group["DeletionPolicy"] == "Delete"
