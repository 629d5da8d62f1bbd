"""What must hold of every bucket."""

from __future__ import annotations

from collections.abc import Iterator

from stacks.rules.templates import Resource, Templates

BLOCKS = ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets")


def it_is_closed_to_the_public(resource: Resource, _: Templates) -> Iterator[str]:
    """All four ways in."""
    block = resource.properties.get("PublicAccessBlockConfiguration", {})
    if missing := [name for name in BLOCKS if block.get(name) is not True]:
        yield f"PublicAccessBlockConfiguration must set {', '.join(missing)}"


def it_is_encrypted_by_s3s_own_key(resource: Resource, _: Templates) -> Iterator[str]:
    """A bucket may outlive every key of its platform."""
    rules = resource.properties.get("BucketEncryption", {}).get("ServerSideEncryptionConfiguration", [])
    if [rule.get("ServerSideEncryptionByDefault") for rule in rules] != [{"SSEAlgorithm": "AES256"}]:
        yield "BucketEncryption must be AES256"


RULES = (it_is_closed_to_the_public, it_is_encrypted_by_s3s_own_key)
