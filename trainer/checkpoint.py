"""Sharded checkpoints that are whole or absent: written beside training, committed by a rename, resumed exactly.

torch.distributed.checkpoint is imported where it is used, for the reason that `loop` gives.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from trainer.config import ConfigError, TrainerConfig
from trainer.model import Llama
from trainer.ranks import Ranks

if TYPE_CHECKING:
    from torch.distributed.checkpoint.staging import AsyncStager

PREFIX = "step-"
PARTIAL = ".partial"
RUN_FILE = "run.json"

# What a run is about. With another value, the steps already taken would belong to another run. The strategy, the
# micro batch and the number of ranks may change, and so may all that says how to go on from here.
IDENTITY = (
    "model",
    "model_parameters",
    "initial_weights",
    "data",
    "data_format",
    "sequence_length",
    "global_batch_size",
    "seed",
)
DATA_DIGEST = "data_digest"


class Checkpoints:
    """The checkpoints of one run, in `folder`: `step-00000100` and so on, at most one being written."""

    def __init__(self, folder: Path, config: TrainerConfig, ranks: Ranks, data_digest: str) -> None:
        self.folder = folder
        self.ranks = ranks
        self.keep = config.checkpoints_to_keep
        self.run = config.model_dump(mode="json") | {DATA_DIGEST: data_digest}
        # Its collectives run on a thread beside training's and must not meet them on one group.
        self._group = dist.new_group(backend="gloo")
        self._writing: tuple[int, Future[Any]] | None = None
        self._stager: AsyncStager | None = None
        self._copying: Future[None] | None = None
        # The step saved last. Ranks must know it by themselves: a look at the folder may fall before or after a rename.
        self._newest: int | None = None

    def newest(self) -> int | None:
        """The step of the newest whole checkpoint, the same on every rank.

        Raises:
            ConfigError: it cannot be read, or it is of a run with other options.
        """
        found: list[int | None] = [None]

        def look() -> None:
            if self.ranks.rank == 0:
                found[0] = max(committed_steps(self.folder), default=None)
                if found[0] is not None:
                    self._check(self._path(found[0]))

        self.ranks.agreed(look)
        dist.broadcast_object_list(found, src=0, group=self.ranks.control)
        self._newest = found[0]
        return self._newest

    def _check(self, path: Path) -> None:
        """Refuse a checkpoint that is not whole, or another run's: to start anew or from an older one would lose it."""
        try:
            saved = json.loads((path / RUN_FILE).read_text(encoding="utf-8"))
            _check_files(path)
        except Exception as error:  # noqa: BLE001, unpickling a torn file raises whatever it meets
            raise ConfigError(
                f"{path}: cannot be read ({str(error) or type(error).__name__}); "
                "restore it, or move it away to resume from the checkpoint before it"
            ) from None
        for name in IDENTITY:
            if saved.get(name) != self.run[name]:
                raise ConfigError(
                    f"{name}: a resumed run must keep {saved.get(name)!r}, got {self.run[name]!r}; "
                    f"set it back, or give this training another `run` than {self.run['run']}"
                )
        if saved[DATA_DIGEST] != self.run[DATA_DIGEST]:
            raise ConfigError(
                f"data: a resumed run must keep the tokens it began with, got others in {self.run['data']}; "
                f"restore files and tokenizer, or give this training another `run` than {self.run['run']}"
            )

    def load(self, step: int, model: Llama, optimizer: Optimizer) -> None:
        """Read weights and moments into the shards of `model` and `optimizer`, whatever world size wrote them."""
        from torch.distributed.checkpoint.state_dict_loader import load

        load(_state(model, optimizer, step), checkpoint_id=self._path(step), process_group=self._group)

    def start_saving(self, step: int, model: Llama, optimizer: Optimizer) -> float:
        """Begin to copy the state and write it beside training; first wait for a write that still runs.

        Returns:
            Seconds that training stood still.
        """
        from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save

        began = time.perf_counter()
        self.finish()
        if self._stager is None:
            self._stager = _stager(self.ranks.device)
            # The copy is made beside the next passes, which change nothing of it. What does is the update after them.
            optimizer.register_step_pre_hook(lambda *_: self._wait_for_copy())
        partial = self._prepared(step)
        written = async_save(
            _state(model, optimizer, step),
            checkpoint_id=partial,
            process_group=self._group,
            async_stager=self._stager,
        )
        assert isinstance(written, AsyncSaveResponse)
        self._writing = (step, written.upload_completion)
        self._copying = written.staging_completion
        self._newest = step
        return time.perf_counter() - began

    def poll(self) -> None:
        """Commit what has been written. Called every step, for a checkpoint counts only once it is committed."""
        if self._writing is not None and self._writing[1].done():
            self.finish()

    def finish(self) -> None:
        """Wait until what is being written is committed."""
        if self._writing is None:
            return
        step, written = self._writing
        self._writing = None
        written.result()
        self._commit(step)

    def _wait_for_copy(self) -> None:
        if self._copying is not None:
            self._copying.result()
            self._copying = None

    def save(self, step: int, model: Llama, optimizer: Optimizer) -> float:
        """Write the state, unless that of this step is saved already, and commit it before returning.

        Returns:
            Seconds that it took.
        """
        from torch.distributed.checkpoint.state_dict_saver import save

        began = time.perf_counter()
        self.finish()
        if step != self._newest:
            save(_state(model, optimizer, step), checkpoint_id=self._prepared(step), process_group=self._group)
            self._commit(step)
            self._newest = step
        dist.barrier(group=self.ranks.control)
        return time.perf_counter() - began

    def _path(self, step: int) -> Path:
        return self.folder / f"{PREFIX}{step:08}"

    def _prepared(self, step: int) -> Path:
        """An empty folder under the name of an unfinished checkpoint."""
        partial = self._path(step).with_suffix(PARTIAL)
        if self.ranks.rank == 0:
            for torn in self.folder.glob(f"{PREFIX}*{PARTIAL}"):
                shutil.rmtree(torn)
            partial.mkdir(parents=True)
            with (partial / RUN_FILE).open("w", encoding="utf-8") as file:
                json.dump(self.run, file, indent=2)
                file.flush()
                os.fsync(file.fileno())
        dist.barrier(group=self.ranks.control)
        return partial

    def _commit(self, step: int) -> None:
        """Rank 0 coordinates the write: when its part is done, all ranks' files are in place, the metadata last."""
        if self.ranks.rank != 0:
            return
        path = self._path(step)
        path.with_suffix(PARTIAL).rename(path)
        descriptor = os.open(self.folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        for old in sorted(committed_steps(self.folder))[: -self.keep]:
            # Renamed first, or a kill would leave half of it under the name of a whole one.
            torn = self._path(old).rename(self._path(old).with_suffix(PARTIAL))
            shutil.rmtree(torn)


def _stager(device: torch.device) -> AsyncStager:
    """Copies state, on a thread, into host memory that it keeps from one save to the next."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    is_cuda = device.type == "cuda"
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=is_cuda,
            use_shared_memory=False,
            use_async_staging=True,
            use_non_blocking_copy=is_cuda,
        )
    )


def committed_steps(folder: Path) -> set[int]:
    """The steps of the whole checkpoints in a folder."""
    return {int(path.name.removeprefix(PREFIX)) for path in folder.glob(f"{PREFIX}{'[0-9]' * 8}")}


def _check_files(path: Path) -> None:
    """Read the metadata, and refuse a file that ends before what it should hold."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    ends: dict[str, int] = {}
    for part in FileSystemReader(path).read_metadata().storage_data.values():
        ends[part.relative_path] = max(ends.get(part.relative_path, 0), part.offset + part.length)
    for name, end in ends.items():
        size = (path / name).stat().st_size
        if size < end:
            raise ValueError(f"{name} has {size} bytes of {end}")


def _state(model: Llama, optimizer: Optimizer, step: int) -> dict[str, Tensor]:
    """Weights and AdamW's moments by name, each this rank's shard. Moments that do not exist yet begin at zero.

    torch's own `get_optimizer_state_dict` would take a step to make them, and so change a fresh run.
    """
    state: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        moments = optimizer.state[parameter]
        if not moments:
            moments["exp_avg"] = torch.zeros_like(parameter)
            moments["exp_avg_sq"] = torch.zeros_like(parameter)
        # Every parameter has taken every step, so AdamW's count is the run's.
        moments["step"] = torch.tensor(float(step), dtype=torch.float32, device=parameter.device)
        state[f"model.{name}"] = parameter.detach()
        state[f"exp_avg.{name}"] = moments["exp_avg"]
        state[f"exp_avg_sq.{name}"] = moments["exp_avg_sq"]
    return state
