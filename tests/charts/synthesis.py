"""What the tests of charts share: a platform's manifests, read back from the files that a person would apply."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cdk8s
import yaml

from charts.__main__ import build_charts
from charts.outputs import PlatformOutputs
from config.loader import JOBS_FOLDER, Platform
from config.platform import PlatformConfig

Object = dict[str, Any]

REPOSITORY = JOBS_FOLDER.parent.parent
PLATFORMS_FOLDER = JOBS_FOLDER.parent / "platforms"
SAMPLE_OUTPUTS = REPOSITORY / "charts" / "sample_outputs.json"
# A local platform has no cluster of its own; its manifests suit the newest version that we support.
LOCAL_KUBERNETES_VERSION = "1.36"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifests:
    """A platform's objects by chart, in the order of application, and the folder of their files."""

    platform: Platform
    charts: dict[str, list[Object]]
    folder: Path

    @property
    def objects(self) -> list[Object]:
        """Every object, in the order of application."""
        return [each for objects in self.charts.values() for each in objects]

    @property
    def kubernetes_version(self) -> str:
        """Minor version of the cluster that the manifests are for."""
        config = self.platform.config
        return config.kubernetes_version if isinstance(config, PlatformConfig) else LOCAL_KUBERNETES_VERSION

    def every(self, kind: str) -> Iterator[Object]:
        """The objects of a kind."""
        return (each for each in self.objects if each["kind"] == kind)

    def one(self, kind: str, name: str) -> Object:
        """The object of this kind and name."""
        (found,) = (each for each in self.every(kind) if each["metadata"]["name"] == name)
        return found


def synthesize(platform: Platform, folder: Path) -> Manifests:
    """The manifests of a platform, made as `python -m charts` makes them, from the sample outputs."""
    outputs = None
    if isinstance(platform.config, PlatformConfig):
        outputs = PlatformOutputs.load(SAMPLE_OUTPUTS, platform.config.name)
    app = cdk8s.App(outdir=str(folder))
    build_charts(app, platform, outputs)
    app.synth()
    return Manifests(platform=platform, charts=read_manifests(folder), folder=folder)


def read_manifests(folder: Path) -> dict[str, list[Object]]:
    """The objects of every file, by the file's name without its number."""
    return {
        path.name.removesuffix(".k8s.yaml").partition("-")[2]: list(
            yaml.load_all(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        )
        for path in sorted(folder.glob("*.k8s.yaml"))
    }
