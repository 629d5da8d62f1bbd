"""`make preflight` as a person runs it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from operations.preflight import __main__ as preflight
from operations.preflight.finding import Check, Finding, failed, not_checked, warning
from tests.operations.conftest import REPOSITORY, own_values
from tests.synthesis import config_from


def started(monkeypatch: pytest.MonkeyPatch, path: Path) -> int:
    monkeypatch.setattr("sys.argv", ["preflight", "--config", str(path)])
    return preflight.main()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "platform.yaml"
    path.write_text(yaml.safe_dump({**own_values(), "jobs": []}), encoding="utf-8")
    return path


def test_examples_are_refused_before_aws_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PLATFORM_CONFIG", raising=False)
    monkeypatch.setattr(preflight, "session_of", lambda _: pytest.fail("AWS was asked"))
    assert started(monkeypatch, REPOSITORY / "config/platforms/p5-capacity-block.yaml") == 2
    assert "111122223333 is an account of AWS's documentation" in capsys.readouterr().out


@pytest.mark.usefixtures("aws")
def test_credentials_of_another_account_end_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    monkeypatch.setenv("MOTO_ACCOUNT_ID", "310987654321")
    assert started(monkeypatch, path) == 2
    assert "must be those of account 210987654321" in capsys.readouterr().err


@pytest.mark.usefixtures("aws")
def test_no_credentials_end_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: Path) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert started(monkeypatch, path) == 2
    assert "log in (aws sso login), or set AWS_PROFILE" in capsys.readouterr().err


def test_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("PLATFORM_CONFIG", raising=False)
    assert started(monkeypatch, REPOSITORY / "config/platforms/local.yaml") == 2
    assert "is this machine and has nothing on AWS" in capsys.readouterr().err


def test_every_check_runs_against_an_account_and_its_faults_are_told(
    aws: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    aws.client("ecr").create_repository(repositoryName="p5-capacity-block/trainer")
    assert started(monkeypatch, path) == 2
    said = capsys.readouterr().out
    assert all(f" {check.title} (" in said for check in preflight.CHECKS)
    assert "✓ instance types" in said
    assert "✗ names" in said
    assert "✗ failed: the account has no stack CDKToolkit" in said
    # What this AWS does not know is said, and never taken for well.
    assert "✗ failed: reservations could not be looked at" in said
    assert "US dollars an hour" in said


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize(("finding", "status"), [(failed("a"), 2), (warning("a"), 0), (not_checked("a"), 0), (None, 0)])
def test_only_a_failure_ends_with_two(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    path: Path,
    finding: Finding | None,
    status: int,
) -> None:
    monkeypatch.setattr(preflight, "SERVICES", ())
    monkeypatch.setattr(preflight, "CHECKS", (Check("one", lambda _config, _clients: [finding] if finding else []),))
    assert started(monkeypatch, path) == status
    assert ("failed: 1" in capsys.readouterr().out) == (status == 2)


def test_checks_run_side_by_side() -> None:
    meeting = threading.Barrier(3, timeout=10)

    def wait(_config: Any, _clients: Any) -> list[Finding]:
        meeting.wait()
        return []

    checks = [Check(str(index), wait) for index in range(3)]
    ended = preflight.run_side_by_side(checks, config_from(own_values()), {})
    assert sorted(check.title for check, _, _ in ended) == ["0", "1", "2"]
