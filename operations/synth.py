"""`make synth`: the templates and manifests of one platform, by the same two CLIs that a deployment uses."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from charts.outputs import PlatformOutputs
from config.loader import chosen_path, load_config
from config.names import STACKS
from config.platform import PlatformConfig
from trainer.config import ConfigError

OUTPUTS = Path("outputs.json")
SAMPLE_OUTPUTS = Path("charts/sample_outputs.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesized:
    """Where a platform's templates and manifests lie. A local platform has no templates."""

    name: str
    templates: tuple[Path, ...]
    manifests: tuple[Path, ...]
    used_sample_outputs: bool


def synthesize(path: Path, *, stacks_folder: Path, charts_folder: Path, outputs: Path | None = None) -> Synthesized:
    """Run both CLIs for the platform file at `path`. The config is checked first, since the CLIs bury its sentence.

    Args:
        path: the platform file.
        stacks_folder: where the cloud assembly goes.
        charts_folder: where the manifests go.
        outputs: the outputs file; by default that of the last deployment, or else the sample.

    Raises:
        ConfigError: the config is refused, or a CLI fails, with what it said.
    """
    config = load_config(path).config
    charts = [sys.executable, "-m", "charts", "--config", str(path)]
    templates: tuple[Path, ...] = ()
    if isinstance(config, PlatformConfig):
        outputs = outputs or (OUTPUTS if OUTPUTS.exists() else SAMPLE_OUTPUTS)
        PlatformOutputs.load(outputs, config.name)
        charts += ["--outputs", str(outputs)]
        out = ("--output", str(stacks_folder))
        _run("cdk", "synth", "--quiet", "--no-notices", "--strict", *out, "--context", f"config={path}")
        # The CLI leaves templates of other platforms where they are.
        expected = (stacks_folder / f"{config.name}-{stack}.template.json" for stack in STACKS)
        templates = tuple(template for template in expected if template.is_file())
    _run("cdk8s", "synth", "--no-check-upgrade", "--app", shlex.join(charts), "--output", str(charts_folder))
    return Synthesized(
        name=config.name,
        templates=templates,
        manifests=tuple(sorted(charts_folder.glob("*.yaml"))),
        used_sample_outputs=outputs == SAMPLE_OUTPUTS,
    )


def _run(*command: str) -> None:
    if shutil.which(command[0]) is None:
        raise ConfigError(f"{command[0]}: is not on PATH; run make setup and `. .venv/bin/activate`, or make synth")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"{' '.join(command[:2])} failed with status {done.returncode}:\n{done.stdout}{done.stderr}")


def main() -> int:
    """Entry of `make synth`."""
    parser = argparse.ArgumentParser(prog="python -m operations.synth", description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", help="platform file")
    try:
        path = chosen_path(flag=parser.parse_args().config)
        made = synthesize(path, stacks_folder=Path("cdk.out"), charts_folder=Path("dist"))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if made.templates:
        print(f"cdk.out/: {len(made.templates)} templates of {made.name}")
    else:
        print(f"{made.name} is this machine and has no stacks")
    source = f", from {SAMPLE_OUTPUTS} since nothing is deployed" if made.used_sample_outputs else ""
    print(f"dist/: {len(made.manifests)} manifests of {made.name}{source}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
