"""What the demo shows at its end: the curve as a picture, the summary as JSON, the figures as a table."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from trainer.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The demo in figures. Losses are nats a token on text that was never trained on."""

    unigram_loss: float
    final_loss: float
    kills: int
    resumed_from_step: int
    replayed_steps: int
    replayed_identical: int
    steps: int
    seconds: float
    killed_at_step: int
    seconds_from_kill_to_step: float
    python: str

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def steps_run(metrics: list[Record]) -> dict[int, list[Record]]:
    """Step to its records, in the order in which they ran: one, or more where it was replayed."""
    steps: dict[int, list[Record]] = defaultdict(list)
    for record in metrics:
        if "loss" in record:
            steps[record["step"]].append(record)
    return dict(steps)


def replays(metrics: list[Record]) -> tuple[int, int]:
    """How many steps ran twice, and for how many of them loss and gradient norm agree to the last bit."""
    again = [records for records in steps_run(metrics).values() if len(records) > 1]
    same = [
        records
        for records in again
        if len({(float(r["loss"]).hex(), float(r["gradient_norm"]).hex()) for r in records}) == 1
    ]
    return len(again), len(same)


def draw(metrics: list[Record], summary: Summary, path: Path) -> None:
    """Draw the loss over the steps as they ran, the kill and the resumption marked."""
    mpl.use("Agg")
    steps = steps_run(metrics)
    attempts: dict[int, list[Record]] = defaultdict(list)
    for records in steps.values():
        for index, record in enumerate(records):
            attempts[index].append(record)
    figure, axes = plt.subplots(figsize=(10, 5.2), layout="constrained")
    first = [records[0] for records in steps.values()]
    axes.plot(
        [r["step"] for r in first], [r["loss"] for r in first], color="#2b6cb0", linewidth=1.2, label="training loss"
    )
    if 1 in attempts:
        axes.plot(
            [r["step"] for r in attempts[1]],
            [r["loss"] for r in attempts[1]],
            color="#dd6b20",
            linewidth=4,
            alpha=0.45,
            label=f"replayed: {summary.replayed_identical} of {summary.replayed_steps} steps bit-identical",
        )
    held_out = [r for r in metrics if "held_out_loss" in r]
    axes.plot(
        [r["step"] for r in held_out],
        [r["held_out_loss"] for r in held_out],
        "o-",
        color="#276749",
        label="held-out loss",
    )
    axes.axhline(
        summary.unigram_loss,
        color="#718096",
        linestyle="--",
        linewidth=1,
        label=f"unigram model {summary.unigram_loss:.2f}",
    )
    top = axes.get_ylim()[1]
    for step, text, colour in (
        (summary.killed_at_step, "worker killed", "#c53030"),
        (summary.resumed_from_step, "resumed from checkpoint", "#dd6b20"),
    ):
        axes.axvline(step, color=colour, linewidth=1)
        side = "left" if step == summary.killed_at_step else "right"
        axes.annotate(f" {text} (step {step}) ", (step, top), ha=side, va="top", color=colour)
    axes.annotate(
        f"{summary.final_loss:.2f}",
        (summary.steps, summary.final_loss),
        xytext=(0, -14),
        textcoords="offset points",
        ha="right",
        color="#276749",
    )
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats a token")
    axes.set_title("A tiny Llama learns from Python's manual on two workers, one of them lost on the way")
    axes.legend(loc="center right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
