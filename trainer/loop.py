"""A run from its first step, or the one after its newest checkpoint, to its end.

What brings DTensor in its train (sharding, checkpoints, weights) is imported in `train`: it takes half as long again as
torch itself, and a mistake should be told before.
"""

from __future__ import annotations

import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import yaml
from torch.optim import AdamW

from trainer.config import ConfigError, TrainerConfig
from trainer.data import Batch, Rows, open_rows
from trainer.endings import FINISHED, InterruptedRunError, NonFiniteError, StopSignal
from trainer.lock import lock
from trainer.metrics import Metrics, peak_memory_gib, perplexity
from trainer.model import Llama, ModelConfig
from trainer.order import positions, row_at
from trainer.ranks import Ranks
from trainer.records import Record
from trainer.schedule import learning_rate, total_steps
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


def adamw(model: Llama, config: TrainerConfig) -> AdamW:
    """AdamW over all parameters; what has one dimension, a norm, is not decayed."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=True)


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


@dataclass(kw_only=True)
class Steps:
    """Takes one step after another over the same model, data and optimizer."""

    config: TrainerConfig
    ranks: Ranks
    model: Llama
    optimizer: AdamW
    rows: Rows
    total: int
    taken: int = 0

    def read(self, step: int) -> list[Batch]:
        """This rank's micro batches of step `step`, from 0. No step needs more than its own number to find them."""
        return [self.rows.batch(indices) for indices in self.indices(step)]

    def indices(self, step: int) -> list[list[int]]:
        """The rows of this rank's micro batches."""
        places = positions(
            step=step,
            global_batch_size=self.config.global_batch_size,
            micro_batch_size=self.config.micro_batch_size,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
        )
        return [[row_at(place, rows=len(self.rows), seed=self.config.seed) for place in micro] for micro in places]

    def take(self, batches: list[Batch], labels: int) -> Record:
        """The next optimizer step.

        Args:
            batches: this rank's micro batches.
            labels: tokens to predict in the step over all ranks, by whose count the loss and the gradient are divided.

        Raises:
            NonFiniteError: the loss or the gradient is no number; the weights are as before.
        """
        rate = learning_rate(self.config, step=self.taken, total=self.total)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = torch.zeros((), device=self.ranks.device)
        for index, batch in enumerate(batch.to(self.ranks.device) for batch in batches):
            # Gradients are reduced once a step, with the last micro batch.
            self.model.set_requires_gradient_sync(index == len(batches) - 1)  # type: ignore[operator]  # FSDPModule's
            micro_loss = self.model(batch.tokens, batch.labels, batch.documents) / labels
            micro_loss.backward()
            loss += micro_loss.detach()
        own_loss = loss.clone()
        norm: Any = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.gradient_clip_norm or math.inf)
        dist.all_reduce(loss)
        # The norm is a DTensor, of which each rank has a part.
        mean_loss, gradient_norm = torch.stack((loss, norm.full_tensor())).tolist()
        if not math.isfinite(mean_loss) or not math.isfinite(gradient_norm):
            raise NonFiniteError(
                f"step {self.taken + 1}: the loss is {mean_loss} and the gradient norm {gradient_norm}; "
                f"rank {self.ranks.rank} has a loss of {own_loss.item()} on rows {self.indices(self.taken)}; "
                f"the weights are still those of step {self.taken}"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.taken += 1
        return {
            "loss": mean_loss,
            "gradient_norm": gradient_norm,
            "learning_rate": rate,
            "memory_gib": peak_memory_gib(self.ranks.device),
        }

    def speed(self, seconds: float) -> Record:
        """What a step of that many seconds amounts to, its wait for data and its stall for a checkpoint included."""
        tokens = self.config.global_batch_size * self.config.sequence_length
        speed = tokens / seconds / self.ranks.world_size
        peak = self.config.peak_tflops_per_gpu
        flops = self.model.config.flops_per_token(self.config.sequence_length)
        return {
            "step_seconds": seconds,
            "tokens_per_second_per_gpu": speed,
            "mfu": None if peak is None else speed * flops / (peak * 1e12),
        }


def evaluate(model: Llama, rows: Rows, config: TrainerConfig, ranks: Ranks) -> float:
    """The mean loss over all of `rows`, in nats a token. Every rank runs as many passes, since each gathers weights.

    Raises:
        InterruptedRunError: SIGTERM has reached a rank.
    """
    passes = -(-len(rows) // (config.micro_batch_size * ranks.world_size))
    loss = torch.zeros((), device=ranks.device, dtype=torch.float64)
    labels = 0
    model.eval()
    with torch.no_grad():
        for number in range(passes):
            first = (number * ranks.world_size + ranks.rank) * config.micro_batch_size
            indices = [index if index < len(rows) else None for index in range(first, first + config.micro_batch_size)]
            batch = rows.batch(indices)
            labels += ranks.end_if_asked(batch.label_count())[0]
            batch = batch.to(ranks.device)
            loss += model(batch.tokens, batch.labels, batch.documents)
    model.train()
    dist.all_reduce(loss)
    return float(loss / labels)
