"""One synthesis a platform and session, which every test of stacks and charts reads: jsii is the cost of the suite.

What needs jsii is imported inside the fixtures, so that tests of the trainer start without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import pytest

from config.loader import load_config
from config.platform import PlatformConfig
from tests.synthesis import PLATFORMS_FOLDER, SHIPPED, Synthesized, config_from, values_of

if TYPE_CHECKING:
    from tests.charts.synthesis import Manifests

# The CDK's own validation costs seconds, and cfn-lint reads the same templates here. It must be set before the first
# import of aws_cdk, whose Node process copies the environment once.
os.environ["CDK_VALIDATION"] = "false"


@pytest.fixture(scope="session")
def synthesize(tmp_path_factory: pytest.TempPathFactory) -> Callable[[PlatformConfig], Synthesized]:
    """Templates of any platform, synthesized as app.py does it."""

    def run(config: PlatformConfig) -> Synthesized:
        from app import build_app, new_app

        folder = tmp_path_factory.mktemp("cdk.out")
        app = new_app(outdir=str(folder))
        build_app(app, config)
        templates = {stack.stack_name.removeprefix(f"{config.name}-"): stack.template for stack in app.synth().stacks}
        return Synthesized(config=config, templates=templates, folder=folder)

    return run


@pytest.fixture(scope="session")
def shipped(synthesize: Callable[[PlatformConfig], Synthesized]) -> Callable[[str], Synthesized]:
    """A shipped platform by name, synthesized once."""

    @cache
    def run(name: str) -> Synthesized:
        return synthesize(config_from(values_of(name)))

    return run


@pytest.fixture(scope="session", params=SHIPPED)
def platform(request: pytest.FixtureRequest, shipped: Callable[[str], Synthesized]) -> Synthesized:
    """Each shipped platform in turn."""
    return shipped(request.param)


@pytest.fixture(scope="session")
def manifests_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Manifests]:
    """A shipped platform's manifests by its name, synthesized once."""
    from tests.charts.synthesis import synthesize as synthesize_charts

    @cache
    def run(name: str) -> Manifests:
        return synthesize_charts(load_config(PLATFORMS_FOLDER / f"{name}.yaml"), tmp_path_factory.mktemp(name))

    return run


@pytest.fixture(scope="session", params=[*SHIPPED, "local"])
def manifests(request: pytest.FixtureRequest, manifests_of: Callable[[str], Manifests]) -> Manifests:
    """The manifests of each shipped platform in turn, and of this machine."""
    return manifests_of(request.param)


@pytest.fixture(scope="session")
def block(manifests_of: Callable[[str], Manifests]) -> Manifests:
    """Four p5.48xlarge nodes from a capacity block: the platform with every kind of object."""
    return manifests_of("p5-capacity-block")
