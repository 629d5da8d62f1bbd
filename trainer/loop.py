"""A run from its first step, or the one after its newest checkpoint, to its end.

What brings DTensor in its train (sharding, checkpoints, weights) is imported in `train`: it takes half as long again as
torch itself, and a mistake should be told before.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import yaml

from trainer.config import ConfigError, TrainerConfig
from trainer.data import Rows, open_rows
from trainer.endings import FINISHED, InterruptedRunError, StopSignal
from trainer.lock import lock
from trainer.metrics import Metrics, perplexity
from trainer.model import ModelConfig
from trainer.ranks import Ranks
from trainer.schedule import total_steps
from trainer.steps import Steps, adamw, evaluate
from trainer.tokenize import SUFFIXES, data_files

if TYPE_CHECKING:
    from trainer.checkpoint import Checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Where a run reads and writes."""

    model: Path
    data: Path
    held_out_data: Path | None
    run: Path

    @classmethod
    def of(cls, config: TrainerConfig) -> Paths:
        """The run's paths, all below its shared folder."""
        shared = Path(config.shared_dir)
        return cls(
            model=shared / config.model,
            data=shared / config.data,
            held_out_data=None if config.held_out_data is None else shared / config.held_out_data,
            run=shared / "runs" / config.run,
        )

    @property
    def export(self) -> Path:
        """The model that a finished run leaves, a Hugging Face folder."""
        return self.run / "export"


def train(config: TrainerConfig, stop: StopSignal) -> int:
    """Train as `config` says, on all ranks together.

    Returns:
        The exit status of a run that is finished.

    Raises:
        ConfigError: a user's mistake, found before the first step and by all ranks.
        InterruptedRunError: SIGTERM has reached a rank, and the step that all had taken is saved.
        NonFiniteError: the loss or the gradient is no number.
    """
    paths = Paths.of(config)
    model_config = ModelConfig.load(paths.model)
    for data in (paths.data, paths.held_out_data):
        if data is not None:
            data_files(data, SUFFIXES[config.data_format])

    ranks = Ranks.join(config, stop)
    try:
        return _train_together(config, paths, model_config, ranks)
    except (ConfigError, InterruptedRunError):
        dist.destroy_process_group()  # as all ranks do, for none has died
        raise


def _train_together(config: TrainerConfig, paths: Paths, model_config: ModelConfig, ranks: Ranks) -> int:
    rows = _rows(config, paths, paths.data, model_config, ranks)
    held_out = None
    if paths.held_out_data is not None:
        held_out = _rows(config, paths, paths.held_out_data, model_config, ranks)
    total = total_steps(config, rows=len(rows))
    with ranks.agreed(lambda: lock(paths.run, config.run) if ranks.rank == 0 else nullcontext()):
        return _train_on(rows, held_out, total, config, paths, ranks)


def _train_on(rows: Rows, held_out: Rows | None, total: int, config: TrainerConfig, paths: Paths, ranks: Ranks) -> int:
    from trainer.checkpoint import Checkpoints
    from trainer.parallel import build_mesh, build_model, describe
    from trainer.weights import exported_step, save_weights

    checkpoints = Checkpoints(paths.run / "checkpoints", config, ranks, rows.digest())
    resumed = checkpoints.newest()
    _check_resumption(config, paths, resumed, total)
    if resumed == total and exported_step(paths.export) == total:
        if ranks.rank == 0:
            print(_finished(config, paths, total), flush=True)
        dist.destroy_process_group()
        return FINISHED

    metrics = Metrics(paths.run, config, ranks, total)
    mesh = build_mesh(config, ranks.world_size)
    model = ranks.agreed(lambda: build_model(config, mesh, ranks.device))
    optimizer = adamw(model, config)
    if resumed is not None:
        checkpoints.load(resumed, model, optimizer)
    metrics.open()
    if ranks.rank == 0:
        options = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
        (paths.run / "config.yaml").write_text(options, encoding="utf-8")
    metrics.record(
        {
            "event": "start",
            "resumed_from_step": resumed,
            "world_size": ranks.world_size,
            "total_steps": total,
            "restarts": metrics.attempt,
            # Of this worker's agent alone, which counts none where a node was replaced.
            "torchrun_restarts": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        }
    )
    metrics.say(_opening(config, paths, rows, total, resumed, ranks, describe(model, mesh)))

    steps = Steps(config=config, ranks=ranks, model=model, optimizer=optimizer, rows=rows, total=total)
    steps.taken = resumed or 0
    try:
        _take_steps(steps, checkpoints, held_out, metrics)
        seconds = checkpoints.save(total, model, optimizer)
        metrics.record({"event": "checkpoint", "step": total, "checkpoint_seconds": seconds})
        if held_out is not None:
            _report_held_out(total, evaluate(model, held_out, config, ranks), metrics)
    except InterruptedRunError:
        seconds = checkpoints.save(steps.taken, model, optimizer)
        metrics.say(f"SIGTERM: saved step {steps.taken} in {seconds:.1f} s; the next start resumes there")
        raise
    finally:
        metrics.close()
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    save_weights(model, paths.export, source=paths.model, step=total, dtype=dtype)
    metrics.say(_finished(config, paths, total))
    dist.destroy_process_group()
    return FINISHED


def _take_steps(steps: Steps, checkpoints: Checkpoints, held_out: Rows | None, metrics: Metrics) -> None:
    """Take the steps that are left, with the checkpoints and evaluations between them.

    Raises:
        InterruptedRunError: SIGTERM has reached a rank, in a step or an evaluation.
        NonFiniteError: the loss or the gradient is no number.
    """
    config, ranks, total = steps.config, steps.ranks, steps.total
    with ThreadPoolExecutor(1, "rows") as reader:
        ahead = reader.submit(steps.read, steps.taken)
        while steps.taken < total:
            began = time.perf_counter()
            batches = ahead.result()
            waited = time.perf_counter() - began
            # The next step's rows are read while this one computes.
            ahead = reader.submit(steps.read, steps.taken + 1)
            (labels,) = ranks.end_if_asked(sum(batch.label_count() for batch in batches))
            record = steps.take(batches, labels)
            stalled = None
            if steps.taken % config.checkpoint_every_steps == 0 and steps.taken < total:
                stalled = checkpoints.start_saving(steps.taken, steps.model, steps.optimizer)
            else:
                checkpoints.poll()
            metrics.step(
                {"step": steps.taken, **record, **steps.speed(time.perf_counter() - began)}
                | {"data_wait_seconds": waited, "checkpoint_seconds": stalled}
            )
            if held_out is not None and steps.taken < total and _is_due(config.evaluate_every_steps, steps.taken):
                _report_held_out(steps.taken, evaluate(steps.model, held_out, config, ranks), metrics)


def _check_resumption(config: TrainerConfig, paths: Paths, resumed: int | None, total: int) -> None:
    """Refuse to do again what is done.

    Raises:
        ConfigError: the run is longer than it should become, or its export would be lost to a fresh start.
    """
    if resumed is None and paths.export.is_dir():
        raise ConfigError(
            f"run: {config.run} has an export in {paths.export} but no checkpoint, and would start from scratch; "
            "restore its checkpoints, move the export away, or give this training another `run`"
        )
    if resumed is not None and resumed > total:
        raise ConfigError(
            f"{'steps' if config.epochs is None else 'epochs'}: run {config.run} has taken {resumed} steps already, "
            f"got a length of {total}; lengthen it, or give this training another `run`"
        )


def _finished(config: TrainerConfig, paths: Paths, total: int) -> str:
    return f"run {config.run} is finished: step {total} of {total}, exported to {paths.export}"


def _rows(config: TrainerConfig, paths: Paths, data: Path, model_config: ModelConfig, ranks: Ranks) -> Rows:
    return ranks.agreed(
        lambda: open_rows(
            model=paths.model,
            data=data,
            data_format=config.data_format,
            cache=paths.run / "data",
            sequence_length=config.sequence_length,
            vocab_size=model_config.vocab_size,
            once=ranks.first_does,
        )
    )


def _is_due(every_steps: int | None, step: int) -> bool:
    return every_steps is not None and step % every_steps == 0


def _report_held_out(step: int, loss: float, metrics: Metrics) -> None:
    metrics.record({"event": "evaluation", "step": step, "held_out_loss": loss, "perplexity": perplexity(loss)})
    metrics.say(f"step {step}: held-out loss {loss:.4f} nats a token, perplexity {perplexity(loss):.2f}")


def _opening(
    config: TrainerConfig,
    paths: Paths,
    rows: Rows,
    total: int,
    resumed: int | None,
    ranks: Ranks,
    built: str,
) -> str:
    begins = "from the start" if resumed is None else f"resumed from step {resumed}"
    return "\n".join(
        (
            f"run {config.run}: {total} steps {begins}, {ranks.world_size} ranks on {config.device}, in {paths.run}",
            f"model {paths.model}: {config.model_parameters:,} parameters, {config.initial_weights} weights, "
            f"{config.precision}",
            f"strategy {config.strategy}: {built}",
            f"data {paths.data}: {len(rows):,} sequences of {config.sequence_length} tokens, "
            f"{config.global_batch_size} a step",
        )
    )
