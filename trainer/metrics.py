"""What a run tells: a line a step for people, a record a step for programs, gauges for Prometheus."""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from trainer.config import TrainerConfig
from trainer.ranks import Ranks
from trainer.records import Record, read_records

GAUGES = {
    "loss": ("trainer_loss", "Mean loss of the last step, nats a token."),
    "tokens_per_second_per_gpu": ("trainer_tokens_per_second_per_gpu", "Tokens trained a second and rank."),
    "mfu": ("trainer_mfu", "Model FLOPs utilization, a fraction of the dense bf16 peak."),
    "step_seconds": ("trainer_step_seconds", "Seconds of the last step."),
    "checkpoint_seconds": ("trainer_checkpoint_seconds", "Seconds that training stood still for the last checkpoint."),
    "data_wait_seconds": ("trainer_data_wait_seconds", "Seconds that the last step waited for data."),
    "restarts": ("trainer_restarts_total", "Starts of this run after the first."),
}


class Metrics:
    """Where a run's figures go. Only rank 0 writes records and lines; local rank 0 of every node serves its gauges."""

    def __init__(self, folder: Path, config: TrainerConfig, ranks: Ranks, total_steps: int) -> None:
        self.is_first = ranks.rank == 0
        self.path = folder / "metrics.jsonl"
        self.total_steps = total_steps
        self._file = self._opened() if self.is_first else None
        self._bar = (
            tqdm(total=total_steps, unit="step", dynamic_ncols=True) if self.is_first and sys.stderr.isatty() else None
        )
        self._gauges = self._served(config, ranks) if config.metrics_port and ranks.local_rank == 0 else {}
        self.starts = self._count_starts()

    def _opened(self) -> Any:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("a+", encoding="utf-8")
        # A writer that was killed may have left half a line.
        if file.tell():
            file.seek(0)
            if not file.read().endswith("\n"):
                file.write("\n")
        return file

    def _count_starts(self) -> int:
        return sum(record.get("event") == "start" for record in read_records(self.path))

    def _served(self, config: TrainerConfig, ranks: Ranks) -> dict[str, Any]:
        # Imported here, since most processes serve nothing and would pay for it at every start.
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        registry = CollectorRegistry()
        labels = {"job": config.run, "run": config.run, "node_rank": str(ranks.node_rank)}
        gauges = {
            key: Gauge(name, text, list(labels), registry=registry).labels(**labels)
            for key, (name, text) in GAUGES.items()
        }
        assert config.metrics_port is not None, "serving was asked for"
        start_http_server(config.metrics_port, registry=registry)
        return gauges

    def say(self, text: str) -> None:
        """A line for people, once for all ranks."""
        if self.is_first:
            tqdm.write(text, file=sys.stdout)
            sys.stdout.flush()

    def record(self, record: Record) -> None:
        """A record for programs and for the gauges, written through at once so that a kill loses nothing."""
        for key, gauge in self._gauges.items():
            if record.get(key) is not None:
                gauge.set(record[key])
        if self._file is not None:
            self._file.write(json.dumps({"time": round(time.time(), 3), **record}) + "\n")
            self._file.flush()

    def step(self, record: Record) -> None:
        """The figures of one step."""
        self.record(record)
        if self._bar is not None:
            self._bar.n = record["step"]
            # Drawn by update alone: a refresh here would draw every step, however quick.
            self._bar.set_postfix_str(figures(record), refresh=False)
            self._bar.update(0)
        else:
            self.say(step_line(record, self.total_steps))

    def close(self) -> None:
        """Let go of the file and the terminal."""
        if self._bar is not None:
            self._bar.close()
        if self._file is not None:
            self._file.close()


def step_line(record: Record, total_steps: int) -> str:
    """One step in a line of fixed columns."""
    return f"step {record['step']:>6}/{total_steps}  {figures(record)}"


def figures(record: Record) -> str:
    """What people want to see of a step."""
    mfu = "" if record["mfu"] is None else f"  mfu {record['mfu']:6.1%}"
    return (
        f"loss {record['loss']:7.4f}  norm {record['gradient_norm']:6.3f}  lr {record['learning_rate']:.2e}  "
        f"{record['tokens_per_second_per_gpu']:>8,.0f} tokens/s/GPU{mfu}  memory {record['memory_gib']:5.2f} GiB"
    )


def peak_memory_gib(device: torch.device) -> float:
    """The most memory that this rank has held: of the GPU as torch allocated it, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    kilobyte = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilobyte / 2**30


def perplexity(loss: float) -> float:
    """Perplexity of a loss in nats a token."""
    return math.exp(min(loss, 700.0))
