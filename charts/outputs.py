"""PlatformOutputs: what only a deployed platform knows. The one thing that crosses from stacks/ to charts/."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from config.names import STACKS
from trainer.config import ConfigError

SAMPLE_STACK = "sample"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformOutputs:
    """Values that CloudFormation assigned. A sample has the form of real ones and must never be applied."""

    file_system_id: str
    file_system_dns_name: str
    file_system_mount_name: str
    trainer_image_uri: str
    is_sample: bool

    @classmethod
    def load(cls, path: Path, platform: str) -> Self:
        """The outputs of `platform` in the file that `cdk deploy` wrote.

        Raises:
            ConfigError: there is no such file, it is of another platform, or a value is missing.
        """
        stacks = _stacks(path)
        is_sample = stacks.keys() == {SAMPLE_STACK}
        own = {f"{platform}-{stack}" for stack in STACKS}
        if not is_sample and (strangers := sorted(stacks.keys() - own)):
            raise ConfigError(
                f"{path}: must hold the outputs of {platform} alone, got those of {strangers[0]}; "
                f"run `make outputs CONFIG=…` for {platform}"
            )
        found = {key: value for outputs in stacks.values() for key, value in outputs.items()}
        names = {f.name: f.name.replace("_", " ").title().replace(" ", "") for f in fields(cls) if f.type == "str"}
        if missing := [name for name in names.values() if not isinstance(found.get(name), str)]:
            raise ConfigError(
                f"{path}: {', '.join(missing)} is missing, since the last deployment wrote only some stacks; "
                f"run `make outputs CONFIG=…` for {platform}, or `npx cdk deploy --all` again"
            )
        return cls(**{field: found[key] for field, key in names.items()}, is_sample=is_sample)


def _stacks(path: Path) -> dict[str, dict[str, Any]]:
    try:
        stacks = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file; run `npx cdk deploy --all -c config=PATH`, which writes it, "
            "or look at a sample's manifests by `python -m charts --outputs charts/sample_outputs.json`"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: must be what cdk deploy wrote, got something unreadable ({error}); deploy again"
        ) from None
    if not isinstance(stacks, dict) or not all(isinstance(each, dict) for each in stacks.values()):
        raise ConfigError(
            f"{path}: must map stacks to their outputs, as cdk deploy wrote it, got other JSON; deploy again"
        )
    return stacks
