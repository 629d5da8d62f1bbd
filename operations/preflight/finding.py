"""What a check says of the account: one sentence, and how much it matters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from config.platform import PlatformConfig

# boto3 clients by the service's name. They serve several threads; a session does not.
Clients = Mapping[str, Any]
Kind = Literal["failed", "warning", "not checked"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A deployment would fail (`failed`), may surprise (`warning`), or nobody could look (`not checked`)."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Check:
    """One question to the account. No finding means that all is well."""

    title: str
    run: Callable[[PlatformConfig, Clients], Iterable[Finding]]


def failed(text: str) -> Finding:
    """A deployment would fail, or put something where nobody wants it."""
    return Finding("failed", text)


def warning(text: str) -> Finding:
    """A deployment goes through, and something may surprise."""
    return Finding("warning", text)


def not_checked(text: str) -> Finding:
    """What nobody could look at, and why."""
    return Finding("not checked", text)
