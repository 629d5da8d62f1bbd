"""`make preflight`: what would fail a deployment, found before it starts; and what the platform costs an hour."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import boto3
from botocore.config import Config

from config.platform import PlatformConfig
from operations.aws import AWS_ERRORS, platform_on_aws, said, session_of
from operations.preflight import account, existing, offers, quotas, reservations
from operations.preflight.examples import example_values
from operations.preflight.finding import Check, Clients, Finding, failed
from operations.preflight.price import hourly_price, shown
from trainer.config import ConfigError

CHECKS = (
    Check("reservations", reservations.reservations),
    Check("instance types", offers.instance_types),
    Check("zones", offers.zones),
    Check("file systems", offers.file_systems),
    Check("quotas", quotas.quotas),
    Check("versions and images", account.versions),
    Check("names", account.names),
    Check("bootstrap", account.bootstrap),
    Check("administrators", account.admins),
    Check("permissions", account.permissions),
    Check("bucket", existing.bucket),
    Check("network", existing.network),
    Check("cluster", existing.cluster),
)
SERVICES = (
    "cloudformation", "ec2", "ecr", "eks", "iam", "logs", "resource-groups", "s3", "service-quotas", "ssm", "sts",
)  # fmt: skip
MARKS = {"failed": "✗", "warning": "!", "not checked": "?"}
# A deployment should not wait for a call that does not come through.
CALLS = Config(connect_timeout=5, read_timeout=20, retries={"max_attempts": 3, "mode": "standard"})


def main() -> int:
    """Entry of `make preflight`.

    Returns:
        0 if nothing stands against a deployment, else 2.
    """
    parser = argparse.ArgumentParser(prog="python -m operations.preflight", description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", help="platform file")
    try:
        path, config = platform_on_aws(parser.parse_args().config)
        if examples := list(example_values(config)):
            print(f"{path} still holds examples:")
            print_findings(examples)
            return 2
        clients = clients_of(session_of(config))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{config.name} in account {config.account}, {config.region}", flush=True)
    findings: list[Finding] = []
    for check, found, seconds in run_side_by_side(CHECKS, config, clients):
        worst = next((MARKS[kind] for kind in MARKS if any(f.kind == kind for f in found)), "✓")
        print(f"{worst} {check.title} ({seconds:.1f} s)", flush=True)
        print_findings(found)
        findings += found
    print(shown(hourly_price(config)))
    counts = {kind: sum(finding.kind == kind for finding in findings) for kind in MARKS}
    print(", ".join(f"{kind}: {count}" for kind, count in counts.items()))
    return 2 if counts["failed"] else 0


def clients_of(session: boto3.Session) -> dict[str, object]:
    """A client of every service that a check asks."""
    return {service: session.client(service, config=CALLS) for service in SERVICES}


def run_side_by_side(
    checks: Sequence[Check], config: PlatformConfig, clients: Clients
) -> Iterator[tuple[Check, list[Finding], float]]:
    """Every check with what it found and its seconds, in the order in which they end."""
    with ThreadPoolExecutor(max_workers=len(checks)) as pool:
        futures = {pool.submit(_run, check, config, clients): check for check in checks}
        for future in as_completed(futures):
            yield futures[future], *future.result()


def _run(check: Check, config: PlatformConfig, clients: Clients) -> tuple[list[Finding], float]:
    began = time.monotonic()
    try:
        found = list(check.run(config, clients))
    except AWS_ERRORS as error:
        found = [failed(f"{check.title} could not be looked at ({said(error)}); allow the call, or try again")]
    return found, time.monotonic() - began


def print_findings(findings: Sequence[Finding]) -> None:
    """One line each."""
    for finding in findings:
        print(f"  {MARKS[finding.kind]} {finding.kind}: {finding.text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
