"""One synthesis a platform and session, which every test of charts reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from config.loader import load_config
from tests.charts.synthesis import PLATFORMS_FOLDER, SHIPPED, Manifests, synthesize


@pytest.fixture(scope="session")
def manifests_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Manifests]:
    """A shipped platform's manifests by its name, synthesized once."""

    @cache
    def run(name: str) -> Manifests:
        return synthesize(load_config(PLATFORMS_FOLDER / f"{name}.yaml"), tmp_path_factory.mktemp(name))

    return run


@pytest.fixture(scope="session", params=SHIPPED)
def manifests(request: pytest.FixtureRequest, manifests_of: Callable[[str], Manifests]) -> Manifests:
    """The manifests of each shipped platform in turn."""
    return manifests_of(request.param)


@pytest.fixture(scope="session")
def block(manifests_of: Callable[[str], Manifests]) -> Manifests:
    """Four p5.48xlarge nodes from a capacity block: the platform with every kind of object."""
    return manifests_of("p5-capacity-block")
