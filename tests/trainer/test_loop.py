"""Whole runs as processes: what they compute, what a kill or a signal costs them, and what a second start does."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from tests.trainer.conftest import Shared
from trainer.data import open_rows
from trainer.generate import load_model
from trainer.model import Llama, ModelConfig
from trainer.order import row_at
from trainer.schedule import learning_rate
from trainer.weights import draw_weights


def wait_for_step(shared: Shared, step: int) -> None:
    """Wait until a run has taken `step` steps."""
    deadline = time.monotonic() + 60
    while max(shared.losses(), default=0) < step:
        assert time.monotonic() < deadline, "the run does not move"
        time.sleep(0.02)


def wait_for_checkpoint(shared: Shared, step: int) -> None:
    """Wait until the checkpoint of `step` is committed."""
    deadline = time.monotonic() + 60
    path = shared.folder / "runs" / "test" / "checkpoints" / f"step-{step:08}"
    while not path.is_dir():
        assert time.monotonic() < deadline, "no checkpoint appears"
        time.sleep(0.02)


def single_process_losses(shared: Shared, steps: int) -> list[float]:
    """The run again in a plain loop over the unsharded model: the same rows, rates and optimizer in torch's words."""
    config = shared.config()
    folder = shared.folder / config.model
    model = Llama(ModelConfig.load(folder))
    with torch.no_grad():
        draw_weights(model, config.seed)
    rows = open_rows(
        model=folder,
        data=shared.folder / config.data,
        data_format="text",
        cache=shared.folder / "reference-cache",
        sequence_length=config.sequence_length,
        vocab_size=97,
        once=lambda work: work(),
    )
    decayed = [p for p in model.parameters() if p.ndim > 1]
    kept = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": config.weight_decay}, {"params": kept, "weight_decay": 0.0}],
        betas=(config.beta1, config.beta2),
    )
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step=step, total=12)
        chosen = [row_at(step * 8 + index, rows=len(rows), seed=config.seed) for index in range(8)]
        batch = rows.batch(chosen)
        logits = model(batch.tokens, documents=batch.documents)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_two_ranks_learn_what_a_plain_loop_learns(uninterrupted: Shared) -> None:
    expected = single_process_losses(uninterrupted, 12)
    losses = [loss for _, loss in sorted(uninterrupted.losses().items())]
    assert losses == pytest.approx(expected, abs=2e-3)
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.parametrize(("world_size", "micro_batch_size"), [(1, 8), (1, 2), (4, 1)])
def test_ranks_and_accumulation_change_nothing_but_the_speed(
    shared: Shared, uninterrupted: Shared, world_size: int, micro_batch_size: int
) -> None:
    ended = shared.run(world_size, micro_batch_size=micro_batch_size, steps=4, decay="constant")
    assert [status for status, _, _ in ended] == [0] * world_size, ended[0][2]
    expected = single_process_losses(shared, 1)[0]
    assert shared.losses()[1] == pytest.approx(expected, abs=1e-5)
    assert shared.losses()[1] == pytest.approx(uninterrupted.losses()[1], abs=1e-5)


def test_a_finished_run_leaves_records_checkpoints_and_a_model(uninterrupted: Shared) -> None:
    records = uninterrupted.records()
    steps = [record for record in records if "loss" in record]
    assert [record["step"] for record in steps] == list(range(1, 13))
    for record in steps:
        assert record["tokens_per_second_per_gpu"] == pytest.approx(8 * 16 / record["step_seconds"] / 2)
        assert record["mfu"] is None
        assert record["memory_gib"] > 0
    evaluated = [record["step"] for record in records if record.get("event") == "evaluation"]
    assert evaluated == [6, 12]
    assert uninterrupted.checkpoints() == ["step-00000008", "step-00000012"]
    exported = load_model(uninterrupted.folder / "runs" / "test" / "export", torch.device("cpu"))
    assert exported.config.vocab_size == 97


def test_the_held_out_loss_is_the_mean_over_every_held_out_token(uninterrupted: Shared) -> None:
    folder = uninterrupted.folder
    model = load_model(folder / "runs" / "test" / "export", torch.device("cpu"))
    rows = open_rows(
        model=folder / "models" / "small",
        data=folder / "data" / "held-out",
        data_format="text",
        cache=folder / "reference-cache",
        sequence_length=16,
        vocab_size=97,
        once=lambda work: work(),
    )
    batch = rows.batch(list(range(len(rows))))
    logits = model(batch.tokens, documents=batch.documents)
    expected = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=-100).item()
    found = next(
        r["held_out_loss"] for r in uninterrupted.records() if r.get("event") == "evaluation" and r["step"] == 12
    )
    assert found == pytest.approx(expected, abs=1e-4)


def test_a_run_that_is_killed_resumes_and_ends_bit_for_bit_like_one_that_is_not(
    shared: Shared, uninterrupted: Shared
) -> None:
    ranks = shared.start(2, held_out_data="data/held-out", evaluate_every_steps=6)
    wait_for_checkpoint(shared, 4)
    wait_for_step(shared, 6)
    ranks.kill()
    ranks.wait()
    ended = shared.run(2, held_out_data="data/held-out", evaluate_every_steps=6)
    assert [status for status, _, _ in ended] == [0, 0], ended[0][2]
    resumed_from = [r["resumed_from_step"] for r in shared.records() if r.get("event") == "start"]
    assert resumed_from[0] is None
    assert resumed_from[1] >= 4
    for record in shared.records():
        if "loss" in record:
            assert record["loss"] == uninterrupted.losses()[record["step"]], record["step"]


@pytest.mark.parametrize("world_size", [1, 4])
def test_a_run_resumes_with_another_number_of_ranks(shared: Shared, uninterrupted: Shared, world_size: int) -> None:
    copied = shared.folder / "runs" / "test"
    shutil.copytree(uninterrupted.folder / "runs" / "test", copied)
    shutil.rmtree(copied / "export")
    shutil.rmtree(copied / "checkpoints" / "step-00000012")
    (copied / "metrics.jsonl").unlink()
    ended = shared.run(world_size, micro_batch_size=2)
    assert [status for status, _, _ in ended] == [0] * world_size, ended[0][2]
    losses = shared.losses()
    assert sorted(losses) == [9, 10, 11, 12]
    for step, loss in losses.items():
        assert loss == pytest.approx(uninterrupted.losses()[step], abs=1e-4)


def test_sigterm_to_one_rank_makes_all_save_one_step_and_say_they_were_interrupted(
    shared: Shared, uninterrupted: Shared
) -> None:
    ranks = shared.start(2, steps=12, checkpoint_every_steps=1000)
    wait_for_step(shared, 3)
    ranks.processes[1].send_signal(signal.SIGTERM)
    ended = ranks.wait()
    assert [status for status, _, _ in ended] == [143, 143], ended[0][2]
    saved = shared.checkpoints()
    assert len(saved) == 1
    assert f"saved step {int(saved[0].removeprefix('step-'))} in" in ended[0][1]
    ended = shared.run(2, steps=12, checkpoint_every_steps=1000)
    assert [status for status, _, _ in ended] == [0, 0]
    assert shared.losses() == uninterrupted.losses()


def test_a_finished_run_says_so_and_does_nothing(uninterrupted: Shared) -> None:
    before = {path: path.stat().st_mtime_ns for path in (uninterrupted.folder / "runs").rglob("*") if path.is_file()}
    ended = uninterrupted.run(2, held_out_data="data/held-out", evaluate_every_steps=6)
    assert [status for status, _, _ in ended] == [0, 0]
    assert "run test is finished: step 12 of 12" in ended[0][1]
    after = {path: path.stat().st_mtime_ns for path in (uninterrupted.folder / "runs").rglob("*") if path.is_file()}
    assert after == before


def test_a_torn_checkpoint_is_never_picked_up_and_an_unreadable_one_never_passed_over(
    shared: Shared, uninterrupted: Shared
) -> None:
    """Starting from scratch, or from an older step, without a word is how days of training are lost."""
    runs = shared.folder / "runs" / "test"
    shutil.copytree(uninterrupted.folder / "runs" / "test", runs)
    shutil.rmtree(runs / "export")
    (runs / "checkpoints" / "step-00000012").rename(runs / "checkpoints" / "step-00000012.partial")
    ended = shared.run(2)
    assert [status for status, _, _ in ended] == [0, 0], ended[0][2]
    assert [r["resumed_from_step"] for r in shared.records() if r.get("event") == "start"][-1] == 8
    assert shared.checkpoints() == ["step-00000008", "step-00000012"]

    shutil.rmtree(runs / "export")
    (runs / "checkpoints" / "step-00000012" / ".metadata").unlink()
    ended = shared.run(2)
    assert [status for status, _, _ in ended] == [2, 2]
    assert "step-00000012: cannot be read" in ended[0][2]
    assert ended[1][2] == ""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"seed": 1}, "seed: a resumed run must keep 0, got 1; set it back, or give this training another `run`"),
        ({"data": "data/held-out"}, "data: a resumed run must keep 'data/train', got 'data/held-out'"),
        ({"sequence_length": 8}, "sequence_length: a resumed run must keep 16, got 8"),
    ],
)
def test_an_option_that_a_resume_cannot_honour_is_refused_by_name(
    uninterrupted: Shared, change: dict[str, Any], expected: str
) -> None:
    ended = uninterrupted.run(1, **change)
    assert ended[0][0] == 2
    assert expected in ended[0][2]
    assert "Traceback" not in ended[0][2]


def test_a_loss_that_is_no_number_stops_with_the_step_and_the_rows(shared: Shared) -> None:
    ended = shared.run(1, learning_rate=1e30, warmup_steps=0, gradient_clip_norm=None)
    status, _, err = ended[0]
    assert status == 1
    assert re.search(r"step 2: the loss is \S+ and the gradient norm nan; rank 0 has a loss of \S+ on rows \[\[", err)
    assert "the weights are still those of step 1" in err
    assert "Traceback" not in err


def test_mfu_is_the_stated_formula_over_the_stated_peak(shared: Shared) -> None:
    shared.run(1, steps=2, peak_tflops_per_gpu=0.001)
    flops = ModelConfig.load(shared.folder / "models" / "small").flops_per_token(16)
    for record in shared.records():
        if "loss" in record:
            assert record["mfu"] == pytest.approx(record["tokens_per_second_per_gpu"] * flops / 1e9)


def test_records_survive_a_line_torn_by_a_kill(shared: Shared) -> None:
    path = shared.folder / "runs" / "test" / "metrics.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text('{"event": "start"}\n{"step": 1, "lo', encoding="utf-8")
    shared.run(1, steps=2)
    assert [r["step"] for r in shared.records() if "loss" in r] == [1, 2]
    assert [r["restarts"] for r in shared.records() if "restarts" in r] == [1]
    lines = path.read_text(encoding="utf-8").splitlines()
    assert all(json.loads(line) for line in lines[2:])


def test_gauges_are_served_while_it_trains(shared: Shared) -> None:
    import socket
    import urllib.request

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = shared.start(1, steps=3000, metrics_port=port)
    try:
        wait_for_step(shared, 2)
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    finally:
        ranks.kill()
        ranks.wait()
    assert 'trainer_loss{job="test",node_rank="0",run="test"}' in text
    for name in ("trainer_tokens_per_second_per_gpu", "trainer_step_seconds", "trainer_restarts_total"):
        assert name in text
