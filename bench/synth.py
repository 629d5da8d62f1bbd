"""`make bench-synth`: synthesis of a full platform beside that of the smallest app there is, pair after pair.

A pair runs both commands one after the other, so that a slow moment of the machine meets both; the figure is the median
over the pairs of the ratio of their times. Writes `build/bench/synth.json`.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
FOLDER = REPOSITORY / "build" / "bench"
PLATFORM = "config/platforms/p5-capacity-block.yaml"
PAIRS = 7

ONE_BUCKET = """
import json, pathlib
import aws_cdk as cdk
from aws_cdk import aws_s3 as s3
context = json.loads(pathlib.Path("cdk.json").read_text())["context"]
app = cdk.App(context=context, analytics_reporting=False)
s3.Bucket(cdk.Stack(app, "one", env=cdk.Environment(account="111122223333", region="us-east-2")), "Bucket")
app.synth()
"""
ONE_OBJECT = """
import cdk8s
from cdk8s_plus_28 import k8s
app = cdk8s.App()
k8s.KubeConfigMap(cdk8s.Chart(app, "one"), "Map", metadata=k8s.ObjectMeta(name="map"))
app.synth()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure, what it should be at most, and whether it is."""

    name: str
    value: float
    target: float
    met: bool
    seconds: float
    floor_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A command of the product and the floor below it, each with its folder."""

    name: str
    target: float
    command: list[str]
    floor: list[str]
    floor_folder: Path


def pairs() -> list[Pair]:
    """What is compared, the floors written out."""
    shutil.rmtree(FOLDER / "floor", ignore_errors=True)
    cdk, cdk8s = FOLDER / "floor" / "cdk", FOLDER / "floor" / "cdk8s"
    for folder, source in ((cdk, ONE_BUCKET), (cdk8s, ONE_OBJECT)):
        folder.mkdir(parents=True)
        (folder / "main.py").write_text(source, encoding="utf-8")
    settings = json.loads((REPOSITORY / "cdk.json").read_text(encoding="utf-8"))
    (cdk / "cdk.json").write_text(json.dumps(settings | {"app": f"{sys.executable} main.py"}), encoding="utf-8")
    quiet = ["--quiet", "--no-notices"]
    out = str(FOLDER / "cdk.out")
    charts = f"{sys.executable} -m charts --config {PLATFORM} --outputs charts/sample_outputs.json"
    dist = str(FOLDER / "dist")
    return [
        Pair(
            name="cdk synth, of one bucket's",
            target=1.3,
            command=["cdk", "synth", *quiet, "--output", out, "--context", f"config={PLATFORM}"],
            floor=["cdk", "synth", *quiet, "--output", str(cdk / "out")],
            floor_folder=cdk,
        ),
        Pair(
            name="python app.py, of one bucket's",
            target=1.9,
            command=[sys.executable, "app.py", "--config", PLATFORM],
            floor=[sys.executable, "main.py"],
            floor_folder=cdk,
        ),
        Pair(
            name="cdk8s synth, of one object's",
            target=1.3,
            command=["cdk8s", "synth", "--no-check-upgrade", "--app", charts, "--output", dist],
            floor=["cdk8s", "synth", "--no-check-upgrade", "--app", f"{sys.executable} main.py", "--output", "dist"],
            floor_folder=cdk8s,
        ),
    ]


def seconds(command: list[str], folder: Path, environment: dict[str, str]) -> float:
    """How long a command takes."""
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return time.perf_counter() - began


def measure(pair: Pair) -> Row:
    """Run a pair, first once to warm the caches of both, then as often as counts."""
    environment = dict(os.environ)
    if pair.command[0] == sys.executable:
        # What the CLI would do beside: its validation is measured in the other row.
        environment |= {"CDK_VALIDATION": "false", "CDK_OUTDIR": str(FOLDER / "app.out")}
    times = [
        (seconds(pair.command, REPOSITORY, environment), seconds(pair.floor, pair.floor_folder, environment))
        for _ in range(PAIRS + 1)
    ][1:]
    ratio = statistics.median(ours / floor for ours, floor in times)
    return Row(
        name=pair.name,
        value=round(ratio, 2),
        target=pair.target,
        met=ratio <= pair.target,
        seconds=round(statistics.median(ours for ours, _ in times), 2),
        floor_seconds=round(statistics.median(floor for _, floor in times), 2),
    )


def main() -> int:
    """Measure, print, write."""
    rows = []
    for pair in pairs():
        row = measure(pair)
        rows.append(row)
        verdict = "met" if row.met else "missed"
        print(
            f"{row.name:<32} {row.value:5.2f} (target {row.target}, {verdict}); "
            f"{row.seconds} s and {row.floor_seconds} s",
            flush=True,
        )
    (FOLDER / "synth.json").write_text(json.dumps({"rows": [asdict(row) for row in rows]}, indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
