"""`make demo`: text, templates, manifests, etcd, two workers, a kill, a resumption, and what came of it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from operations.demo.english import English, write_english
from operations.demo.machine import Machine
from operations.demo.manifests import Manifests
from operations.demo.report import Summary, draw, replays, steps_run
from operations.demo.workers import Workers
from operations.synth import SAMPLE_OUTPUTS, Synthesized, synthesize
from trainer.config import ConfigError, TrainerConfig, validate
from trainer.records import Record, read_records

CLOUD_PLATFORM = Path("config/platforms/p5-capacity-block.yaml")
LOCAL_PLATFORM = Path("config/platforms/local.yaml")
FOLDER = Path("build/demo")
RESTART_SECONDS = 1.0  # until the training operator has made another pod: it does so at once
STALLED_SECONDS = 120.0
PROMPT = "The Python interpreter"
SAMPLE_TOKENS = 160


class DemoError(Exception):
    """The demo could not go on, with what the process concerned said last."""


def main() -> int:
    """Run the demo.

    Returns:
        The exit status.
    """
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    began = time.monotonic()
    folder = FOLDER.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with phase(console, "synthesizing a cloud platform and this machine"):
            cloud, local = synthesize_both(folder)
        manifests = Manifests(folder / "local" / "dist")
        options = trainer_options(manifests)
        machine = Machine(folder=folder, shared_dir=folder / "fsx", manifests=manifests)
        with phase(console, "writing text, tokenizer and model from Python's manual"):
            assert options.held_out_data is not None, "the demo's job evaluates"
            english = write_english(
                machine.shared_dir, model=options.model, data=options.data, held_out=options.held_out_data
            )
        try:
            summary, metrics = train(console, machine, options, english, began)
        finally:
            machine.stop()
        with phase(console, "sampling from the exported model"):
            sample = generate(machine, options)
    except (ConfigError, DemoError, TimeoutError) as error:
        console.print(f"[red]{error}[/red]")
        return 1
    summary.write(folder / "summary.json")
    draw(metrics, summary, folder / "loss.png")
    tell(console, summary, cloud, local, sample, time.monotonic() - began)
    return 0 if summary.replayed_identical == summary.replayed_steps else 1


@contextmanager
def phase(console: Console, what: str) -> Iterator[None]:
    """Say what is being done, and how long it took."""
    began = time.monotonic()
    with console.status(what):
        yield
    console.print(f"✓ {what} [dim]{time.monotonic() - began:.1f} s[/dim]")


def synthesize_both(folder: Path) -> tuple[Synthesized, Synthesized]:
    """Templates and manifests of the cloud platform, and the manifests of this machine."""
    cloud = synthesize(
        CLOUD_PLATFORM,
        stacks_folder=folder / "cloud" / "cdk.out",
        charts_folder=folder / "cloud" / "dist",
        outputs=SAMPLE_OUTPUTS,
    )
    local = synthesize(
        LOCAL_PLATFORM, stacks_folder=folder / "local" / "cdk.out", charts_folder=folder / "local" / "dist"
    )
    return cloud, local


def trainer_options(manifests: Manifests) -> TrainerConfig:
    """What the job's ConfigMap tells the trainer."""
    job = manifests.find("PyTorchJob")
    text = manifests.find("ConfigMap", f"{job['metadata']['name']}-options")["data"]["config.yaml"]
    return validate(TrainerConfig, yaml.safe_load(text), source="the job's options")


def train(
    console: Console, machine: Machine, options: TrainerConfig, english: English, began: float
) -> tuple[Summary, list[Record]]:
    """Run the job with one worker lost on the way.

    Raises:
        DemoError: a worker failed, or nothing moved for two minutes.
    """
    machine.start_etcd()
    workers = Workers(machine)
    victim = workers.names[-1]
    assert options.steps is not None, "the demo's job has a number of steps"
    every = options.checkpoint_every_steps
    # Half-way between two checkpoints, so that steps are lost; after the middle, so that there is something to lose.
    kill_after = (options.steps // 2 // every) * every + every // 2
    path = machine.shared_dir / "runs" / options.run / "metrics.jsonl"
    console.print(substitutions(machine, workers))
    killed_at: int | None = None
    killed_time = resumed_time = 0.0
    moved, last_step = time.monotonic(), -1
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as progress:
        task = progress.add_task("two workers meet in etcd", total=options.steps)
        while True:
            metrics = read_records(path)
            step, loss = latest(metrics)
            if step != last_step:
                moved, last_step = time.monotonic(), step
                if step:
                    progress.update(task, completed=step, description=f"training, loss {loss:.3f}")
                if not console.is_terminal and step and step % every == 0:
                    console.print(f"  step {step}/{options.steps}, loss {loss:.3f}")
            if killed_at is None and step >= kill_after and is_saved(machine, options, step):
                workers.kill(victim)
                killed_time, killed_at = time.monotonic(), latest(read_records(path))[0]
                progress.console.print(f"✗ step {killed_at}: {victim} is killed, with all its processes")
                time.sleep(RESTART_SECONDS)
                workers.replace(victim)
                progress.update(task, description="the survivor notices, a new worker joins")
            elif killed_at is not None and not resumed_time and len(starts(metrics)) > 1 and step < killed_at:
                resumed_time = time.monotonic()
                progress.console.print(
                    f"✓ resumed from the checkpoint of step {starts(metrics)[-1]['resumed_from_step']}, "
                    f"{resumed_time - killed_time:.1f} s after the kill"
                )
            statuses = workers.statuses()
            if all(status == 0 for status in statuses.values()):
                break
            for name, status in statuses.items():
                if status not in (None, 0):
                    said = workers.running[name].tail()
                    raise DemoError(f"{name} ended with status {status}; the end of its log:\n{said}")
            if time.monotonic() - moved > STALLED_SECONDS:
                raise DemoError(f"no step for {STALLED_SECONDS:.0f} s; logs lie in {machine.folder / 'logs'}")
            time.sleep(0.1)
    metrics = read_records(path)
    if killed_at is None:
        raise DemoError("the run ended before a worker was killed")
    replayed, identical = replays(metrics)
    summary = Summary(
        unigram_loss=english.unigram_loss,
        final_loss=[record["held_out_loss"] for record in metrics if "held_out_loss" in record][-1],
        kills=1,
        resumed_from_step=starts(metrics)[-1]["resumed_from_step"],
        replayed_steps=replayed,
        replayed_identical=identical,
        steps=max(steps_run(metrics)),
        seconds=time.monotonic() - began,
        killed_at_step=killed_at,
        seconds_from_kill_to_step=resumed_time - killed_time,
        python=platform.python_version(),
    )
    console.print(f"✓ trained {summary.steps} steps [dim]{summary.seconds:.0f} s since the start[/dim]")
    return summary, metrics


def latest(metrics: list[Record]) -> tuple[int, float]:
    """Step and loss of the newest record that has them."""
    for record in reversed(metrics):
        if "loss" in record:
            return record["step"], record["loss"]
    return 0, float("nan")


def starts(metrics: list[Record]) -> list[Record]:
    """The records of the run's starts."""
    return [record for record in metrics if record.get("event") == "start"]


def is_saved(machine: Machine, options: TrainerConfig, step: int) -> bool:
    """Whether the checkpoint before `step` is committed."""
    every = options.checkpoint_every_steps
    folder = machine.shared_dir / "runs" / options.run / "checkpoints"
    return (folder / f"step-{step // every * every:08}").is_dir()


def contents(path: Path) -> str:
    """How many resources or objects a file holds."""
    if path.suffix == ".json":
        count, noun = len(json.loads(path.read_text(encoding="utf-8"))["Resources"]), "resource"
    else:
        count, noun = len(list(yaml.safe_load_all(path.read_text(encoding="utf-8")))), "object"
    return f"{count} {noun}{'' if count == 1 else 's'}"


def substitutions(machine: Machine, workers: Workers) -> Table:
    """What differs from the manifests."""
    table = Table(title="what this machine changes in the manifests", title_justify="left", box=None, show_header=False)
    table.add_row("image", workers.container["image"], "→", os.path.relpath(sys.executable))
    for theirs, ours in machine.replaced.items():
        table.add_row("address", theirs, "→", ours)
    table.add_row("mount path", "each volume's", "→", f"a folder below {FOLDER}")
    return table


def generate(machine: Machine, options: TrainerConfig) -> str:
    """Text from the exported model.

    Raises:
        DemoError: the generator failed.
    """
    config = machine.folder / "generate.yaml"
    values: dict[str, Any] = options.model_dump(mode="json") | {"shared_dir": str(machine.shared_dir)}
    config.write_text(yaml.safe_dump(values), encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "trainer.generate",
            f"--config={config}",
            f"--prompt={PROMPT}",
            f"--tokens={SAMPLE_TOKENS}",
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DemoError(f"trainer.generate ended with status {done.returncode}:\n{done.stderr}")
    return done.stdout.strip()


def tell(
    console: Console, summary: Summary, cloud: Synthesized, local: Synthesized, sample: str, seconds: float
) -> None:
    """The end of the demo: a sample, what was synthesized and where it lies, the figures."""
    console.print("\n[bold]A sample[/bold] [dim](style only: the model has under a million parameters)[/dim]")
    console.print(sample, markup=False)
    for made in (cloud, local):
        folders = {path.parent: None for path in (*made.templates, *made.manifests)}
        table = Table(title=f"\nWhat was synthesized for {made.name}", title_justify="left", box=SIMPLE_HEAD)
        table.add_column("file", no_wrap=True)
        table.add_column("holds")
        for folder in folders:
            table.add_row(f"[bold]{os.path.relpath(folder)}[/bold]", "")
            for path in (*made.templates, *made.manifests):
                if path.parent == folder:
                    table.add_row(f"  {path.name}", contents(path))
        console.print(table)
    figures = Table(title="\nWhat was trained", title_justify="left", show_header=False)
    rows = {
        "held-out loss": f"{summary.final_loss:.3f} nats a token",
        "a unigram model's": f"{summary.unigram_loss:.3f}, so {summary.unigram_loss - summary.final_loss:.2f} better",
        "worker killed at step": str(summary.killed_at_step),
        "resumed from step": f"{summary.resumed_from_step}, {summary.seconds_from_kill_to_step:.1f} s after the kill",
        "replayed steps": f"{summary.replayed_steps}, of which {summary.replayed_identical} bit-identical",
        "text": f"the manual of Python {summary.python}",
        "picture": str(FOLDER / "loss.png"),
        "summary": str(FOLDER / "summary.json"),
        "time": f"{seconds:.0f} s",
    }
    for name, value in rows.items():
        figures.add_row(name, value)
    console.print(figures)


if __name__ == "__main__":
    sys.exit(main())
