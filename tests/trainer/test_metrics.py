from __future__ import annotations

import json
import socket
import sys
import urllib.request
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest

from tests.trainer.conftest import Shared, free_port
from trainer.config import ConfigError
from trainer.metrics import Metrics, perplexity, step_line
from trainer.ranks import Ranks
from trainer.records import is_torn, read_records

RECORD: dict[str, Any] = {
    "step": 7,
    "loss": 3.25,
    "gradient_norm": 0.5,
    "learning_rate": 2e-5,
    "tokens_per_second_per_gpu": 9876.5,
    "mfu": 0.412,
    "memory_gib": 61.5,
    "step_seconds": 1.5,
    "data_wait_seconds": 0.0012,
    "checkpoint_seconds": None,
}


class Terminal(StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


Opened = Callable[..., Metrics]


@pytest.fixture
def opened(alone: Ranks, shared: Shared) -> Iterator[Opened]:
    """Metrics that write into the shared folder itself, and are closed after the test."""
    made: list[Metrics] = []

    def open_metrics(**changes: Any) -> Metrics:
        metrics = Metrics(shared.folder, shared.config(**changes), alone, 500)
        made.append(metrics)
        metrics.open()
        return metrics

    yield open_metrics
    for metrics in made:
        metrics.close()


def test_a_step_is_a_line_with_every_figure_and_its_unit() -> None:
    assert step_line(RECORD, 100) == (
        "step      7/100  loss  3.2500  norm  0.500  lr 2.00e-05     9,876 tokens/s/GPU  mfu  41.2%  memory 61.50 GiB  "
        "data 0.001 s"
    )


def test_a_stall_is_told_where_there_was_one() -> None:
    assert step_line(RECORD | {"checkpoint_seconds": 0.25}, 100).endswith("data 0.001 s  checkpoint 0.25 s")


def test_no_mfu_is_claimed_without_a_peak() -> None:
    assert "mfu" not in step_line(RECORD | {"mfu": None}, 100)


def test_perplexity_of_a_hopeless_model_is_a_number() -> None:
    assert perplexity(0.0) == 1.0
    assert perplexity(1e9) < float("inf")


def test_a_record_is_on_disk_at_once_and_its_floats_to_the_last_bit(opened: Opened, shared: Shared) -> None:
    opened().record(RECORD | {"loss": 1 / 3})
    (record,) = read_records(shared.folder / "metrics.jsonl")
    assert record["loss"] == 1 / 3


def test_an_attempt_is_the_number_of_starts_before_it(opened: Opened, shared: Shared) -> None:
    for attempt in range(3):
        metrics = opened()
        metrics.record({"event": "start"})
        metrics.record(RECORD)
        attempts = [record["attempt"] for record in read_records(shared.folder / "metrics.jsonl")]
        assert attempts[-2:] == [attempt, attempt]


def test_a_line_torn_by_a_kill_stays_the_only_one_lost(opened: Opened, shared: Shared) -> None:
    path = shared.folder / "metrics.jsonl"
    path.write_text(json.dumps({"event": "start"}) + '\n{"step": 1, "lo', encoding="utf-8")
    assert is_torn(path)
    metrics = opened()
    metrics.record(RECORD)
    assert not is_torn(path)
    assert [record.get("step") for record in read_records(path)] == [None, 7]
    assert metrics.attempt == 1


def test_nothing_is_written_before_the_run_is_known_to_be_good(alone: Ranks, shared: Shared) -> None:
    Metrics(shared.folder / "runs", shared.config(), alone, 100)
    assert not (shared.folder / "runs").exists()


def test_only_a_terminal_gets_a_bar_and_no_frame_for_every_step(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`set_postfix` would draw one at each step, however quick they are."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    metrics = opened()
    for step in range(1, 501):
        metrics.step(RECORD | {"step": step})
    metrics.close()
    assert terminal.getvalue().count("\r") < 20
    assert "500/500" in terminal.getvalue()
    assert capsys.readouterr().out == ""

    monkeypatch.setattr(sys, "stderr", StringIO())
    opened().step(RECORD)
    assert capsys.readouterr().out == step_line(RECORD, 500) + "\n"


def test_gauges_have_the_last_figures_and_say_whose_they_are(opened: Opened) -> None:
    port = free_port()
    metrics = opened(metrics_port=port)
    metrics.record({"event": "start", "restarts": 2})
    metrics.record(RECORD | {"checkpoint_seconds": 0.5})
    metrics.record(RECORD | {"loss": 2.5})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    whose = '{job="test",node_rank="0",run="test"}'
    served = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert {name: float(value) for name, value in served.items()} == {
        f"trainer_loss{whose}": 2.5,
        f"trainer_tokens_per_second_per_gpu{whose}": 9876.5,
        f"trainer_mfu{whose}": 0.412,
        f"trainer_step_seconds{whose}": 1.5,
        f"trainer_checkpoint_seconds{whose}": 0.5,
        f"trainer_data_wait_seconds{whose}": 0.0012,
        f"trainer_restarts_total{whose}": 2.0,
    }


def test_a_port_that_is_taken_is_one_sentence(opened: Opened) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"metrics_port: {port} cannot be served on .* give another port"):
            opened(metrics_port=port)
