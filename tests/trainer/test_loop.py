"""Whole runs as processes: what they compute, what a kill or a signal costs them, and what a second start does."""

from __future__ import annotations

import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from tests.trainer.conftest import LETTERS, Ranks, Shared
from trainer.config import TrainerConfig
from trainer.data import open_rows
from trainer.generate import load_model
from trainer.model import Llama, ModelConfig
from trainer.order import row_at
from trainer.schedule import learning_rate
from trainer.tokenize import documents, load_tokenizer, write_token_file
from trainer.weights import draw_weights

LONG: dict[str, Any] = {"steps": 3000, "checkpoint_every_steps": 1000}


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
    """Micro batches have unequal numbers of labels, so a mean of their means would differ from the first step on."""
    ended = shared.run(world_size, micro_batch_size=micro_batch_size)
    assert [status for status, _, _ in ended] == [0] * world_size, ended[0][2]
    for name, steps, tolerance in (("loss", 1, 1e-5), ("gradient_norm", 1, 1e-5), ("loss", 12, 2e-3)):
        found = [record[name] for record in shared.records() if "loss" in record]
        expected = [record[name] for record in uninterrupted.records() if "loss" in record]
        assert found[:steps] == pytest.approx(expected[:steps], rel=tolerance)


def test_a_finished_run_leaves_records_checkpoints_and_a_model(uninterrupted: Shared) -> None:
    records = uninterrupted.records()
    steps = [record for record in records if "loss" in record]
    assert [record["step"] for record in steps] == list(range(1, 13))
    # The clock of the records agrees: steps 2 to 5, with no evaluation between them.
    between = steps[4]["time"] - steps[0]["time"]
    assert sum(record["step_seconds"] for record in steps[1:5]) == pytest.approx(between, rel=0.3)
    for record in steps:
        # What a run waits for counts as time too.
        assert record["step_seconds"] > record["data_wait_seconds"] + (record["checkpoint_seconds"] or 0)
        assert record["tokens_per_second_per_gpu"] == pytest.approx(8 * 16 / record["step_seconds"] / 2)
        assert record["mfu"] is None
        assert record["memory_gib"] > 0
    evaluated = [record["step"] for record in records if record.get("event") == "evaluation"]
    assert evaluated == [6, 12]
    assert uninterrupted.checkpoints() == ["step-00000008", "step-00000012"]
    assert [record["step"] for record in steps if record["checkpoint_seconds"] is not None] == [4, 8]
    run = uninterrupted.folder / "runs" / "test"
    assert TrainerConfig.load(run / "config.yaml") == uninterrupted.config(
        held_out_data="data/held-out", evaluate_every_steps=6
    )
    exported = load_model(run / "export", torch.device("cpu"))
    assert exported.config.vocab_size == 97
    assert (run / "export" / "tokenizer.json").read_bytes() == (
        uninterrupted.folder / "models" / "small" / "tokenizer.json"
    ).read_bytes()


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
    expected = {r["step"]: (r["loss"], r["gradient_norm"]) for r in uninterrupted.records() if "loss" in r}
    for record in shared.records():
        if "loss" in record:
            assert (record["loss"], record["gradient_norm"]) == expected[record["step"]], record["step"]
    assert sorted(shared.losses()) == list(range(1, 13))
    assert {record["attempt"] for record in shared.records()} == {0, 1}


def test_kills_at_any_moment_of_a_save_leave_a_checkpoint_to_go_on_from(shared: Shared) -> None:
    """Every step saves, so that each kill falls into a save; a step that runs twice must come to the same."""
    options = {"steps": 16, "checkpoint_every_steps": 1}
    for attempt, delay in enumerate((0.0, 0.01, 0.03)):
        ranks = shared.start(2, **options)
        reached = max(shared.losses(), default=0)
        wait_for_step(shared, reached + 3)
        time.sleep(delay)
        ranks.kill()
        ranks.wait()
        starts = [r["resumed_from_step"] for r in shared.records() if r.get("event") == "start"]
        assert len(starts) == attempt + 1
        # A save takes less than two steps here, and the next one waits for it.
        assert starts[-1] is None or starts[-1] >= reached - 3
    ended = shared.run(2, **options)
    assert [status for status, _, _ in ended] == [0, 0], ended[0][2]
    seen: dict[int, set[float]] = {}
    for record in shared.records():
        if "loss" in record:
            seen.setdefault(record["step"], set()).add(record["loss"])
    assert sorted(seen) == list(range(1, 17))
    assert {len(losses) for losses in seen.values()} == {1}


def test_a_checkpoint_counts_while_training_goes_on_and_not_at_the_next_one(shared: Shared) -> None:
    ranks = shared.start(1, **LONG | {"checkpoint_every_steps": 150})
    wait_for_checkpoint(shared, 150)
    taken = max(shared.losses())
    ranks.kill()
    ranks.wait()
    assert taken < 290


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


def add_long_documents(folder: Path, megabytes: int) -> None:
    text = " ".join(f"{a}{b}{a}" for a in LETTERS for b in LETTERS) + " "
    (folder / "long.txt").write_text(text * (megabytes * 1_000_000 // len(text)), encoding="utf-8")


def wait_for_output(ranks: Ranks, text: str) -> None:
    """Wait until rank 0 has said something."""
    deadline = time.monotonic() + 60
    path = ranks.processes[0].out
    while not path.is_file() or text not in path.read_text():
        assert time.monotonic() < deadline, f"nobody says {text}"
        time.sleep(0.01)


def wait_until_heard(ranks: Ranks, rank: int) -> None:
    """Wait until SIGTERM no longer ends a rank at once, by the kernel's list of the signals that it handles."""
    deadline = time.monotonic() + 60
    status = Path(f"/proc/{ranks.processes[rank].process.pid}/status")
    handled = 0
    while not handled >> (signal.SIGTERM - 1) & 1:
        assert time.monotonic() < deadline, "SIGTERM is not handled"
        (line,) = [line for line in status.read_text().splitlines() if line.startswith("SigCgt:")]
        handled = int(line.split()[1], 16)


def interrupt(shared: Shared, ranks: Ranks, rank: int = 1) -> list[str]:
    """SIGTERM to one rank: all save one step, say so, and end. Returns the names of the checkpoints."""
    began = time.monotonic()
    ranks.processes[rank].send_signal(signal.SIGTERM)
    ended = ranks.wait()
    assert time.monotonic() - began < 20, "torchrun kills after 30 s"
    assert [status for status, _, _ in ended] == [143, 143], ended[0][2]
    assert [err for _, _, err in ended] == ["", ""]
    saved = shared.checkpoints()
    assert f"saved step {int(saved[-1].removeprefix('step-'))} in" in ended[0][1]
    return saved


def test_sigterm_to_one_rank_makes_all_save_one_step_and_say_they_were_interrupted(
    shared: Shared, uninterrupted: Shared
) -> None:
    ranks = shared.start(2, steps=12, checkpoint_every_steps=1000)
    wait_for_step(shared, 3)
    assert len(interrupt(shared, ranks)) == 1
    ended = shared.run(2, steps=12, checkpoint_every_steps=1000)
    assert [status for status, _, _ in ended] == [0, 0]
    assert shared.losses() == uninterrupted.losses()


@pytest.mark.parametrize("rank", [0, 1])
def test_sigterm_before_the_first_step_saves_what_there_is(shared: Shared, rank: int) -> None:
    tokenizer, end = load_tokenizer(shared.folder / "models" / "small")
    write_token_file(shared.folder / "data" / "all.bin", tokenizer, end, documents(shared.folder / "data", "text"))
    ranks = shared.start(2, **LONG, data="data/all.bin", data_format="tokens")
    wait_until_heard(ranks, rank)
    saved = interrupt(shared, ranks, rank)
    assert len(saved) == 1
    assert int(saved[0].removeprefix("step-")) == max(shared.losses(), default=0)


def test_sigterm_while_a_save_is_written_saves_one_step(shared: Shared) -> None:
    ranks = shared.start(2, **LONG | {"checkpoint_every_steps": 1})
    wait_for_step(shared, 3)
    saved = interrupt(shared, ranks)
    assert len(saved) == 2
    assert int(saved[1].removeprefix("step-")) == max(shared.losses())


def test_sigterm_while_it_evaluates_ends_the_evaluation(shared: Shared) -> None:
    add_long_documents(shared.folder / "data" / "held-out", megabytes=1)
    ranks = shared.start(2, **LONG, held_out_data="data/held-out", evaluate_every_steps=2)
    wait_for_step(shared, 2)
    assert interrupt(shared, ranks) == ["step-00000002"]
    assert not [record for record in shared.records() if record.get("event") == "evaluation"]


def test_sigterm_in_the_last_evaluation_leaves_the_rest_to_the_next_start(shared: Shared) -> None:
    add_long_documents(shared.folder / "data" / "held-out", megabytes=1)
    ranks = shared.start(2, steps=2, held_out_data="data/held-out")
    wait_for_step(shared, 2)
    assert interrupt(shared, ranks) == ["step-00000002"]
    assert not (shared.folder / "runs" / "test" / "export").exists()
    ended = shared.run(2, steps=2)
    assert [status for status, _, _ in ended] == [0, 0]
    assert (shared.folder / "runs" / "test" / "export").is_dir()
    assert sorted(shared.losses()) == [1, 2]


def test_sigterm_while_text_is_tokenized_does_not_wait_for_the_end_of_it(shared: Shared) -> None:
    add_long_documents(shared.folder / "data" / "train", megabytes=60)
    ranks = shared.start(2, **LONG)
    wait_for_output(ranks, "tokenizing")
    began = time.monotonic()
    ranks.processes[1].send_signal(signal.SIGTERM)
    ended = ranks.wait()
    assert time.monotonic() - began < 10
    assert [status for status, _, _ in ended] == [143, 143]
    assert not (shared.folder / "runs" / "test" / "checkpoints").exists()


def test_a_finished_run_says_so_and_does_nothing(uninterrupted: Shared) -> None:
    before = {path: path.stat().st_mtime_ns for path in (uninterrupted.folder / "runs").rglob("*") if path.is_file()}
    ended = uninterrupted.run(2, held_out_data="data/held-out", evaluate_every_steps=6)
    assert [status for status, _, _ in ended] == [0, 0]
    assert "run test is finished: step 12 of 12" in ended[0][1]
    after = {path: path.stat().st_mtime_ns for path in (uninterrupted.folder / "runs").rglob("*") if path.is_file()}
    assert after == before


def test_a_second_training_in_the_same_folder_is_refused_and_the_first_goes_on(shared: Shared) -> None:
    """Two writers delete each other's unfinished checkpoints, and one of them may commit a torn one."""
    first = shared.start(1, steps=400, checkpoint_every_steps=1000)
    try:
        wait_for_step(shared, 2)
        status, _, err = shared.run(1, steps=400, checkpoint_every_steps=1000)[0]
        assert status == 2
        assert "run: test is being trained by another process in" in err
        assert "Traceback" not in err
        wait_for_step(shared, max(shared.losses()) + 2)
    finally:
        first.kill()
        first.wait()
    status, _, err = shared.run(1, steps=3, checkpoint_every_steps=1000)[0]
    assert status == 0, err


def test_a_run_that_was_made_longer_exports_its_own_weights(shared: Shared, uninterrupted: Shared) -> None:
    """Killed between its last checkpoint and its export, it must not pass the shorter run's export off as its own."""
    runs = shared.folder / "runs" / "test"
    shutil.copytree(uninterrupted.folder / "runs" / "test", runs)
    (runs / "export" / "training_step.json").write_text('{"step": 8}', encoding="utf-8")
    weights = runs / "export" / "model.safetensors"
    expected = weights.read_bytes()
    weights.write_bytes(b"those of step 8")
    ended = shared.run(2)
    assert [status for status, _, _ in ended] == [0, 0], ended[0][2]
    assert weights.read_bytes() == expected


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


def lose_checkpoints(shared: Shared) -> None:
    shutil.rmtree(shared.folder / "runs" / "test" / "checkpoints")


def change_a_document(shared: Shared) -> None:
    (shared.folder / "data" / "train" / "2.txt").write_text("aba aca ada " * 60, encoding="utf-8")


@pytest.mark.parametrize(
    ("loss", "changes", "expected"),
    [
        (None, {"seed": 1}, "seed: a resumed run must keep 0, got 1"),
        (None, {"steps": 8}, "steps: run test has taken 12 steps already, got a length of 8; lengthen it"),
        (change_a_document, {"steps": 20}, "data: a resumed run must keep the tokens it began with, got others in"),
        (lose_checkpoints, {}, "run: test has an export in"),
    ],
)
def test_a_start_that_would_make_another_run_of_it_is_refused(
    shared: Shared,
    uninterrupted: Shared,
    loss: Callable[[Shared], None] | None,
    changes: dict[str, Any],
    expected: str,
) -> None:
    shutil.copytree(uninterrupted.folder / "runs" / "test", shared.folder / "runs" / "test")
    if loss is not None:
        loss(shared)
    ended = shared.run(1, **changes)
    assert ended[0][0] == 2
    assert expected in ended[0][2]
    assert "\n" not in ended[0][2].strip()
    assert len(shared.records()) == len(uninterrupted.records())


def test_a_finished_run_that_is_lengthened_goes_on(shared: Shared, uninterrupted: Shared) -> None:
    shutil.copytree(uninterrupted.folder / "runs" / "test", shared.folder / "runs" / "test")
    ended = shared.run(1, steps=14)
    assert ended[0][0] == 0, ended[0][2]
    assert sorted(shared.losses()) == list(range(1, 15))


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
