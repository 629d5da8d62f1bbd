"""What the tests of stacks share: a synthesized platform, and the config of platforms that no file describes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from cfnlint.config import ConfigMixIn  # type: ignore[import-untyped]
from cfnlint.runner import Runner  # type: ignore[import-untyped]

from config.loader import JOBS_FOLDER
from config.platform import PlatformConfig

Template = dict[str, Any]
Resource = dict[str, Any]

PLATFORMS_FOLDER = JOBS_FOLDER.parent / "platforms"
SHIPPED = sorted(path.stem for path in PLATFORMS_FOLDER.glob("*.yaml") if path.stem != "local")
STACKS = ("network", "cluster", "storage", "registry", "node-groups")


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesized:
    """A platform's templates, by the stack's id without the platform's name, and where they were written."""

    config: PlatformConfig
    templates: dict[str, Template]
    folder: Path

    def resources(self, stack: str, type_: str) -> dict[str, Resource]:
        """Logical id to resource, of one type."""
        return {id_: r for id_, r in self.templates[stack]["Resources"].items() if r["Type"] == type_}

    def one(self, stack: str, type_: str) -> Resource:
        """The only resource of its type."""
        (resource,) = self.resources(stack, type_).values()
        return resource

    def every(self, type_: str | None = None) -> Iterator[tuple[str, Resource]]:
        """Stack and logical id, and the resource, of all stacks."""
        for stack, template in self.templates.items():
            for id_, resource in template["Resources"].items():
                if type_ is None or resource["Type"] == type_:
                    yield f"{stack}/{id_}", resource


def values_of(name: str) -> dict[str, Any]:
    """What a shipped platform's file says, to be changed at will."""
    values: dict[str, Any] = yaml.safe_load((PLATFORMS_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return copy.deepcopy(values)


def config_from(values: dict[str, Any]) -> PlatformConfig:
    """A platform without its jobs, which stacks know nothing of."""
    return PlatformConfig.model_validate({**values, "jobs": []})


def lint(platform: Synthesized) -> list[str]:
    """What cfn-lint says of all templates of a platform, in one run, since a run reads its rules first."""
    files = [str(path) for path in sorted(platform.folder.glob("*.template.json"))]
    assert len(files) == len(STACKS)
    return [str(match) for match in Runner(ConfigMixIn([], templates=files, regions=[platform.config.region])).run()]
