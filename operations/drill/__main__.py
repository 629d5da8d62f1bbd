"""`make drill-deploy`: bootstrap, deploy, deploy again, scale a group, add a group, destroy; and show what is left."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import yaml

from config.loader import load_config
from config.platform import PlatformConfig
from operations.drill.emulator import ACCOUNT, environment, install, running, suitable_python
from operations.drill.stand_ins import stand_in_everywhere
from trainer.config import ConfigError

FOLDER = Path("build/drill")
PLATFORM = Path("config/platforms/p5-capacity-block.yaml")
QUIET = ("--no-notices", "--ci")


class DrillError(Exception):
    """A step of the drill did not do what it should."""


def main() -> int:
    """Run the drill.

    Returns:
        0 if all went as it should, or where no Python is new enough for the emulator; else 1.
    """
    python = suitable_python()
    if python is None:
        print("skipped: the emulator needs Python 3.12 or newer, and there is none on PATH or in pyenv")
        return 0
    state = FOLDER.resolve() / "state"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True)
    program = install(python, FOLDER.resolve() / "emulator")
    values = variant({})
    try:
        with running(program, state, values["region"]) as endpoint:
            Drill(endpoint, state, values["region"]).run()
    except (DrillError, ConfigError, TimeoutError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def variant(changes: dict[str, Any]) -> dict[str, Any]:
    """The values of the shipped platform in the emulator's account, with some of them changed."""
    values: dict[str, Any] = yaml.safe_load(PLATFORM.read_text(encoding="utf-8"))
    values |= {"account": ACCOUNT, "name": "drill"}
    values["cluster"]["admins"] = [f"arn:aws:iam::{ACCOUNT}:role/platform-engineer"]
    return values | changes


class Drill:
    """The steps, each run by the real CLI against the emulator."""

    def __init__(self, endpoint: str, folder: Path, region: str) -> None:
        self.folder = folder
        self.region = region
        self.environment = environment(endpoint, region, folder)
        session = boto3.Session(aws_access_key_id="drill", aws_secret_access_key="drill", region_name=region)  # noqa: S106
        self.cloudformation = session.client("cloudformation", endpoint_url=endpoint)
        self.s3 = session.client("s3", endpoint_url=endpoint)
        self.eks = session.client("eks", endpoint_url=endpoint)

    def run(self) -> None:
        """Every step in turn."""
        group = variant({})["node_groups"][0]
        active = {**group["reservation"], "active": True}
        scaled = {**group, "desired_size": 2, "reservation": active}
        added = {
            "name": "p5-small",
            "instance_type": "p5.4xlarge",
            "purchase": "on_demand",
            "availability_zone": active["availability_zone"],
            "max_size": 1,
        }
        first = self.assembly("first", {})
        with step("bootstrap the account"):
            self.cdk("bootstrap", "--app", str(first))
        with step("deploy every stack"):
            self.deploy(first)
            self.expect_stacks(5)
        with step("deploy again, which changes nothing"):
            said = self.deploy(self.assembly("again", {}))
            if said.count("(no changes)") != 5:
                raise DrillError(f"a second deployment changed something:\n{said}")
        with step("scale a node group, which touches its stack alone"):
            said = self.deploy(self.assembly("scaled", {"node_groups": [scaled]}))
            self.expect(said.count("(no changes)") == 4, f"scaling touched more than one stack:\n{said}")
            self.expect(self.group_sizes() == {2}, f"the group has sizes {self.group_sizes()}")
        last = self.assembly("added", {"node_groups": [scaled, added]})
        with step("add a node group, and leave the first as it is"):
            said = self.deploy(last)
            self.expect(said.count("(no changes)") == 4, f"adding touched more than one stack:\n{said}")
            self.expect(self.group_sizes() == {0, 2}, f"the groups have sizes {self.group_sizes()}")
        buckets = self.buckets()
        with step("destroy everything"):
            self.cdk("destroy", "--all", "--force", "--app", str(last))
        self.expect_stacks(0)
        kept = self.buckets()
        self.expect(kept == buckets, f"teardown: retain keeps the bucket, and {buckets} became {kept}")
        print(f"left, as the platform says (teardown: retain): bucket {', '.join(kept)}")
        print("left for the next platform of the account: the bootstrap stack CDKToolkit")

    def assembly(self, name: str, changes: dict[str, Any]) -> Path:
        """The cloud assembly of a variant of the platform, with stand-ins.

        Raises:
            ConfigError: the variant is refused.
        """
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(variant(changes)), encoding="utf-8")
        assert isinstance(load_config(path).config, PlatformConfig), "the drill's platform is on AWS"
        out = self.folder / name
        self.cdk("synth", "--quiet", "--output", str(out), "--context", f"config={path}")
        count = stand_in_everywhere(out)
        if name == "first":
            print(f"  {count} resources are stood in for")
        return out

    def deploy(self, assembly: Path) -> str:
        """Deploy all stacks of an assembly, and say what the CLI said."""
        return self.cdk(
            "deploy", "--all", "--app", str(assembly), "--require-approval", "never", "--progress", "events",
            "--outputs-file", str(self.folder / "outputs.json"), "--concurrency", "1",
        )  # fmt: skip

    def cdk(self, *arguments: str) -> str:
        """What the CLI says.

        Raises:
            DrillError: it failed.
        """
        command = ["cdk", *arguments, *QUIET]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=300, check=False)
        said = done.stdout + done.stderr
        if done.returncode:
            raise DrillError(f"cdk {arguments[0]} ended with status {done.returncode}:\n{said[-4000:]}")
        return said

    def expect_stacks(self, count: int) -> None:
        """Refuse another number of the platform's stacks.

        Raises:
            DrillError: there are more or fewer.
        """
        stacks = [stack["StackName"] for stack in self.cloudformation.describe_stacks()["Stacks"]]
        ours = [name for name in stacks if name.startswith("drill-")]
        self.expect(len(ours) == count, f"{count} stacks of the platform should exist, and {ours} do")

    def group_sizes(self) -> set[int]:
        """The desired sizes of the GPU node groups."""
        names = self.eks.list_nodegroups(clusterName="drill")["nodegroups"]
        described = [self.eks.describe_nodegroup(clusterName="drill", nodegroupName=n)["nodegroup"] for n in names]
        gpu = [group for group in described if "training-platform/gpu" in (group.get("labels") or {})]
        return {group["scalingConfig"]["desiredSize"] for group in gpu}

    def buckets(self) -> list[str]:
        """The buckets of the platform."""
        return sorted(b["Name"] for b in self.s3.list_buckets()["Buckets"] if b["Name"].startswith("drill-"))

    @staticmethod
    def expect(is_so: bool, otherwise: str) -> None:
        """Refuse what should not be.

        Raises:
            DrillError: it is not so.
        """
        if not is_so:
            raise DrillError(otherwise)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Say what is done, and how long it took."""
    began = time.monotonic()
    print(f"{what} …", flush=True)
    yield
    print(f"✓ {what} ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
