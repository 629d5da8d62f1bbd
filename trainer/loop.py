"""A run from its first step, or the one after its newest checkpoint, to its end."""

from __future__ import annotations

import math
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from trainer.checkpoint import Checkpoints
from trainer.config import TrainerConfig
from trainer.data import Batch, Rows, open_rows
from trainer.loss import IGNORED_LABEL
from trainer.metrics import Metrics, peak_memory_gib, perplexity
from trainer.model import Llama, ModelConfig
from trainer.order import positions, row_at
from trainer.parallel import build_mesh, build_model, describe
from trainer.ranks import Ranks
from trainer.records import Record
from trainer.schedule import learning_rate, total_steps
from trainer.weights import save_weights

# What a shell reports for a process that ended by SIGTERM. torchrun takes it for a failure, so that a run which was
# interrupted is never reported as one that finished, and the next start resumes it.
INTERRUPTED = 128 + signal.SIGTERM


class NonFiniteError(Exception):
    """A loss or gradient that is no number. Nothing was updated with it."""


class StopSignal:
    """Whether this process was asked to end. SIGTERM only sets the flag; all ranks act on it at the same step."""

    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._set)

    def _set(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002, the signature of a handler
        self.is_set = True


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


def train(config: TrainerConfig) -> int:
    """Train as `config` says, on all ranks together.

    Returns:
        The exit status: 0 for a run that is finished, 143 for one that SIGTERM interrupted after it saved.

    Raises:
        ConfigError: a user's mistake, found before the first step.
        NonFiniteError: the loss or the gradient is no number.
    """
    stop = StopSignal()
    ranks = Ranks.join(config)
    paths = Paths.of(config)
    model_config = ModelConfig.load(paths.model)
    rows = _rows(config, paths, paths.data, model_config, ranks)
    held_out = None
    if paths.held_out_data is not None:
        held_out = _rows(config, paths, paths.held_out_data, model_config, ranks)
    total = total_steps(config, rows=len(rows))

    checkpoints = Checkpoints(paths.run / "checkpoints", config, ranks)
    resumed = checkpoints.newest()
    export = paths.run / "export"
    if resumed is not None and resumed >= total and export.is_dir():
        if ranks.rank == 0:
            print(f"run {config.run} is finished: step {resumed} of {total}, exported to {export}")
        return 0

    mesh = build_mesh(config, ranks.world_size)
    model = build_model(config, mesh, ranks.device)
    optimizer = _optimizer(model, config)
    step = 0
    if resumed is not None:
        checkpoints.load(resumed, model, optimizer)
        step = resumed
    metrics = Metrics(paths.run, config, ranks, total)
    metrics.record(
        {
            "event": "start",
            "resumed_from_step": resumed,
            "world_size": ranks.world_size,
            "total_steps": total,
            "restarts": metrics.starts,
        }
    )
    metrics.say(_opening(config, paths, rows, total, resumed, ranks, model, mesh))

    steps = Steps(config=config, ranks=ranks, model=model, optimizer=optimizer, rows=rows, total=total)
    while step < total:
        began = time.perf_counter()
        batches = steps.batches(step)
        waited = time.perf_counter() - began
        labels, asked_to_stop = ranks.sums(label_count(batches), int(stop.is_set))
        if asked_to_stop:
            seconds = checkpoints.save(step, model, optimizer)
            metrics.say(f"SIGTERM: saved step {step} in {seconds:.1f} s; the next start resumes there")
            return INTERRUPTED
        record = steps.take(step, batches, labels)
        step += 1
        stalled = None
        if step % config.checkpoint_every_steps == 0 and step < total:
            stalled = checkpoints.start_saving(step, model, optimizer)
        else:
            checkpoints.poll()
        metrics.step({"step": step, **record, "data_wait_seconds": waited, "checkpoint_seconds": stalled})
        if held_out is not None and step < total and _is_due(config.evaluate_every_steps, step):
            _report_held_out(step, evaluate(model, held_out, config, ranks), metrics)

    checkpoints.save(total, model, optimizer)
    if held_out is not None:
        _report_held_out(total, evaluate(model, held_out, config, ranks), metrics)
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    save_weights(model, export, source=paths.model, dtype=dtype)
    metrics.say(f"run {config.run} is finished: step {total} of {total}, exported to {export}")
    metrics.close()
    return 0


def _rows(config: TrainerConfig, paths: Paths, data: Path, model_config: ModelConfig, ranks: Ranks) -> Rows:
    return open_rows(
        model=paths.model,
        data=data,
        data_format=config.data_format,
        cache=paths.run / "data",
        sequence_length=config.sequence_length,
        vocab_size=model_config.vocab_size,
        writes_cache=ranks.rank == 0,
    )


def _is_due(every_steps: int | None, step: int) -> bool:
    return every_steps is not None and step % every_steps == 0


def _report_held_out(step: int, loss: float, metrics: Metrics) -> None:
    metrics.record({"event": "evaluation", "step": step, "held_out_loss": loss, "perplexity": perplexity(loss)})
    metrics.say(f"step {step}: held-out loss {loss:.4f} nats a token, perplexity {perplexity(loss):.2f}")


def _optimizer(model: Llama, config: TrainerConfig) -> AdamW:
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
    model: Llama,
    mesh: DeviceMesh,
) -> str:
    begins = "from the start" if resumed is None else f"resumed from step {resumed}"
    return "\n".join(
        (
            f"run {config.run}: {total} steps {begins}, {ranks.world_size} ranks on {config.device}, in {paths.run}",
            f"model {paths.model}: {config.model_parameters:,} parameters, {config.initial_weights} weights, "
            f"{config.precision}",
            f"strategy {config.strategy}: {describe(model, mesh)}",
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

    def batches(self, step: int) -> list[Batch]:
        """This rank's micro batches of step `step`, from 0. No step needs more than its own number to find them."""
        return [self.rows.batch(indices).to(self.ranks.device) for indices in self.indices(step)]

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

    def take(self, step: int, batches: list[Batch], labels: int) -> Record:
        """One optimizer step.

        Args:
            step: its number, from 0.
            batches: this rank's micro batches.
            labels: tokens to predict in the step over all ranks, by whose count the loss and the gradient are divided.

        Raises:
            NonFiniteError: the loss or the gradient is no number; the weights are as before.
        """
        began = time.perf_counter()
        rate = learning_rate(self.config, step=step, total=self.total)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = torch.zeros((), device=self.ranks.device)
        for index, batch in enumerate(batches):
            # Gradients are reduced once a step, with the last micro batch.
            self.model.set_requires_gradient_sync(index == len(batches) - 1)  # type: ignore[operator]  # FSDPModule's
            micro_loss = self.model(batch.tokens, batch.labels, batch.documents) / labels
            micro_loss.backward()
            loss += micro_loss.detach()
        own_loss = loss.clone()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.gradient_clip_norm or math.inf)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        dist.all_reduce(loss)
        mean_loss, gradient_norm = torch.stack((loss, norm)).tolist()
        if not math.isfinite(mean_loss) or not math.isfinite(gradient_norm):
            raise NonFiniteError(
                f"step {step + 1}: the loss is {mean_loss} and the gradient norm {gradient_norm}; "
                f"rank {self.ranks.rank} has a loss of {own_loss.item()} on rows {self.indices(step)}; "
                f"the weights are still those of step {step}"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - began
        tokens = self.config.global_batch_size * self.config.sequence_length
        speed = tokens / seconds / self.ranks.world_size
        peak = self.config.peak_tflops_per_gpu
        flops = self.model.config.flops_per_token(self.config.sequence_length)
        return {
            "loss": mean_loss,
            "gradient_norm": gradient_norm,
            "learning_rate": rate,
            "step_seconds": seconds,
            "tokens_per_second_per_gpu": speed,
            "mfu": None if peak is None else speed * flops / (peak * 1e12),
            "memory_gib": peak_memory_gib(self.ranks.device),
        }


def label_count(batches: list[Batch]) -> int:
    """Tokens to predict in this rank's micro batches."""
    return sum(int((batch.labels != IGNORED_LABEL).sum()) for batch in batches)


def evaluate(model: Llama, rows: Rows, config: TrainerConfig, ranks: Ranks) -> float:
    """The mean loss over all of `rows`, in nats a token. Every rank runs as many passes, since each gathers weights."""
    passes = -(-len(rows) // (config.micro_batch_size * ranks.world_size))
    loss = torch.zeros((), device=ranks.device, dtype=torch.float64)
    labels = torch.zeros((), device=ranks.device, dtype=torch.float64)
    model.eval()
    with torch.no_grad():
        for number in range(passes):
            first = (number * ranks.world_size + ranks.rank) * config.micro_batch_size
            indices = [index if index < len(rows) else None for index in range(first, first + config.micro_batch_size)]
            batch = rows.batch(indices).to(ranks.device)
            loss += model(batch.tokens, batch.labels, batch.documents)
            labels += label_count([batch])
    model.train()
    dist.all_reduce(loss)
    dist.all_reduce(labels)
    return float(loss / labels)
