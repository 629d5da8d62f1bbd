"""A model, a tokenizer and data small enough to train in a second, and ways to start ranks over them."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from trainer.__main__ import main
from trainer.config import TrainerConfig, validate
from trainer.endings import StopSignal
from trainer.ranks import Ranks as TrainerRanks
from trainer.records import Record, read_records

REPOSITORY = Path(__file__).parents[2]
LETTERS = "abcdefghijklmnopqrstuvwxyz"

SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 0,
}
PARAMETERS = 2 * (32 * 8 * (2 * 4 + 2 * 2) + 3 * 32 * 48 + 2 * 32) + 2 * 97 * 32 + 32

OPTIONS: dict[str, Any] = {
    "run": "test",
    "device": "cpu",
    "model": "models/small",
    "model_parameters": PARAMETERS,
    "initial_weights": "random",
    "data": "data/train",
    "data_format": "text",
    "sequence_length": 16,
    "micro_batch_size": 2,
    "global_batch_size": 8,
    "steps": 12,
    "learning_rate": 0.01,
    "warmup_steps": 2,
    "precision": "fp32",
    "checkpoint_every_steps": 4,
}


# Ranks are forked from one process that has imported torch already, or each would take seconds to start. What a real
# command line does is for test_main.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["pytest", "trainer.loop", "trainer.checkpoint", "trainer.parallel", "trainer.generate"])


def run_rank(arguments: list[str], environment: dict[str, str], out: Path, err: Path) -> None:
    """One rank in a process of its own, as `python -m trainer` runs it."""
    for path, stream in ((out, sys.stdout), (err, sys.stderr)):
        with path.open("w", encoding="utf-8") as file:
            os.dup2(file.fileno(), stream.fileno())
    os.environ |= environment
    torch.set_num_threads(1)
    sys.exit(main(arguments))


def said_by_the_trainer(err: Path) -> str:
    """What a rank wrote to stderr, less torch's notes, frames and all, that it asks again for rank 0's store."""
    note = r"\[W\d+ [^\n]*TCPStore[^\n]*\n(?:(?:Exception raised|C\+\+|#|frame|<|[ \t])[^\n]*\n|\n)*"
    return re.sub(note, "", err.read_text())


@dataclass(frozen=True)
class Rank:
    """A rank's process and what it says."""

    process: ForkServerProcess
    out: Path
    err: Path

    def send_signal(self, number: int) -> None:
        assert self.process.pid is not None
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)


@dataclass
class Ranks:
    """The processes of a run, one a rank, started as any launcher may: by their environment alone."""

    processes: list[Rank] = field(default_factory=list)

    def wait(self, timeout: float = 60) -> list[tuple[int, str, str]]:
        """Exit status, stdout and stderr of every rank."""
        deadline = time.monotonic() + timeout
        for rank in self.processes:
            rank.process.join(max(0.0, deadline - time.monotonic()))
        hung = [index for index, rank in enumerate(self.processes) if rank.process.exitcode is None]
        self.kill()
        for rank in self.processes:
            rank.process.join()
        ended = [
            (rank.process.exitcode or 0, rank.out.read_text(), said_by_the_trainer(rank.err)) for rank in self.processes
        ]
        assert not hung, f"ranks {hung} did not end: {ended}"
        return ended

    def kill(self) -> None:
        """SIGKILL to every rank."""
        for rank in self.processes:
            rank.send_signal(signal.SIGKILL)


@dataclass(frozen=True)
class Shared:
    """A shared folder with a model and data in it, and the options of a run over them."""

    folder: Path

    def options(self, **changes: Any) -> dict[str, Any]:
        return OPTIONS | {"shared_dir": str(self.folder)} | changes

    def config(self, **changes: Any) -> TrainerConfig:
        return validate(TrainerConfig, self.options(**changes), source="the test")

    def write_options(self, **changes: Any) -> Path:
        path = self.folder / "run.yaml"
        path.write_text(yaml.safe_dump(self.options(**changes)), encoding="utf-8")
        return path

    def start(self, world_size: int, *flags: str, **changes: Any) -> Ranks:
        arguments = ["--config", str(self.write_options(**changes)), *flags]
        common = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        ranks = Ranks()
        for number in range(world_size):
            environment = common | {"RANK": str(number), "LOCAL_RANK": str(number)}
            out, err = self.folder / f"rank-{number}.out", self.folder / f"rank-{number}.err"
            process = FORKS.Process(target=run_rank, args=(arguments, environment, out, err))
            process.start()
            ranks.processes.append(Rank(process, out, err))
        return ranks

    def run(self, world_size: int, *flags: str, **changes: Any) -> list[tuple[int, str, str]]:
        return self.start(world_size, *flags, **changes).wait()

    def records(self, run: str = "test") -> list[Record]:
        return read_records(self.folder / "runs" / run / "metrics.jsonl")

    def losses(self, run: str = "test") -> dict[int, float]:
        """Step to loss, the last where it ran twice."""
        return {r["step"]: r["loss"] for r in self.records(run) if "loss" in r}

    def checkpoints(self, run: str = "test") -> list[str]:
        return sorted(path.name for path in (self.folder / "runs" / run / "checkpoints").iterdir())


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def write_shared(folder: Path, **shape: Any) -> Shared:
    """A folder with a small model's config and tokenizer, and text."""
    model = folder / "models" / "small"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(SHAPE | shape), encoding="utf-8")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=["<end>"], show_progress=False)
    words = [f"{a}{b}{a}" for a in LETTERS for b in LETTERS]
    tokenizer.train_from_iterator(words, trainer)
    tokenizer.save(str(model / "tokenizer.json"))
    for name, step in (("train", 1), ("held-out", 7)):
        (folder / "data" / name).mkdir(parents=True)
        for document in range(4):
            chosen = [words[(document * 131 + index * step * 17) % len(words)] for index in range(160)]
            (folder / "data" / name / f"{document}.txt").write_text(" ".join(chosen), encoding="utf-8")
    return Shared(folder)


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    return write_shared(tmp_path)


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """A finished run of two ranks, by which others are measured. Nobody writes into it."""
    made = write_shared(tmp_path_factory.mktemp("uninterrupted"))
    ended = made.run(2, held_out_data="data/held-out", evaluate_every_steps=6)
    assert [status for status, _, _ in ended] == [0, 0], ended[0][2]
    return made


@pytest.fixture
def single_rank() -> Iterator[Callable[[], None]]:
    """A process group of this process alone."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    def join() -> None:
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)

    yield join
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def alone(single_rank: Callable[[], None]) -> TrainerRanks:
    """This process as the only rank of a run."""
    import torch.distributed as dist

    single_rank()
    return TrainerRanks(
        rank=0,
        local_rank=0,
        world_size=1,
        node_rank=0,
        device=torch.device("cpu"),
        stop=StopSignal(),
        control=dist.new_group(backend="gloo"),
    )
