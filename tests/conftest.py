"""One synthesis a platform and session, which every test of stacks reads: jsii makes it the cost of the suite."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import pytest

from config.platform import PlatformConfig
from tests.synthesis import SHIPPED, Synthesized, config_from, values_of

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
