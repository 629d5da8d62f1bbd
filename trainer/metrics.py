"""What a run tells: a line a step for people, a record a step for programs, gauges for Prometheus."""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import torch
from tqdm import tqdm

from trainer.config import ConfigError, TrainerConfig
from trainer.ranks import Ranks
from trainer.records import Record, is_torn, read_records

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
        """Count the starts of the run so far, and begin to serve.

        Raises:
            ConfigError: the port for the gauges is taken on a node.
        """
        self.is_first = ranks.rank == 0
        self.path = folder / "metrics.jsonl"
        self.total_steps = total_steps
        self._file: TextIO | None = None
        self._bar: tqdm[Any] | None = None
        starts = sum(record.get("event") == "start" for record in read_records(self.path)) if self.is_first else 0
        self.attempt = ranks.sums(starts)[0]
        self._gauges = ranks.agreed(lambda: _served(config, ranks))

    def open(self) -> None:
        """Begin to write, once nothing can be refused any more."""
        if not self.is_first:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+", encoding="utf-8")
        if is_torn(self.path):
            self._file.write("\n")
        if sys.stderr.isatty():
            self._bar = tqdm(total=self.total_steps, unit="step", dynamic_ncols=True)

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
            stamped = {"time": round(time.time(), 3), "attempt": self.attempt, **record}
            self._file.write(json.dumps(stamped) + "\n")
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
        """Write no more records, and leave the terminal to whoever writes next."""
        if self._bar is not None:
            self._bar.close()
        if self._file is not None:
            self._file.close()
            self._file = None


def _served(config: TrainerConfig, ranks: Ranks) -> dict[str, Any]:
    """The gauges of this node by their key in a record, on local rank 0 and if a port is given."""
    if config.metrics_port is None or ranks.local_rank != 0:
        return {}
    # Imported here, since most processes serve nothing and would pay for it at every start.
    from prometheus_client import CollectorRegistry, Gauge, start_http_server

    registry = CollectorRegistry()
    labels = {"job": config.run, "run": config.run, "node_rank": str(ranks.node_rank)}
    gauges = {
        key: Gauge(name, text, list(labels), registry=registry).labels(**labels) for key, (name, text) in GAUGES.items()
    }
    try:
        start_http_server(config.metrics_port, registry=registry)
    except OSError as error:
        raise ConfigError(
            f"metrics_port: {config.metrics_port} cannot be served on {os.uname().nodename} ({error.strerror}); "
            "end what listens there, or give another port"
        ) from None
    return gauges


def step_line(record: Record, total_steps: int) -> str:
    """One step in a line of fixed columns."""
    return f"step {record['step']:>6}/{total_steps}  {figures(record)}"


def figures(record: Record) -> str:
    """What people want to see of a step."""
    mfu = "" if record["mfu"] is None else f"  mfu {record['mfu']:6.1%}"
    stall = "" if record["checkpoint_seconds"] is None else f"  checkpoint {record['checkpoint_seconds']:.2f} s"
    return (
        f"loss {record['loss']:7.4f}  norm {record['gradient_norm']:6.3f}  lr {record['learning_rate']:.2e}  "
        f"{record['tokens_per_second_per_gpu']:>8,.0f} tokens/s/GPU{mfu}  memory {record['memory_gib']:5.2f} GiB  "
        f"data {record['data_wait_seconds']:.3f} s{stall}"
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
