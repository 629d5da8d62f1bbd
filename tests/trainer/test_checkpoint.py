from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from tests.trainer.conftest import Shared
from trainer.checkpoint import RUN_FILE, Checkpoints, committed_steps
from trainer.config import ConfigError, TrainerConfig
from trainer.model import Llama, ModelConfig
from trainer.ranks import Ranks
from trainer.weights import draw_weights

DIGEST = "0123"

Opened = Callable[..., Checkpoints]


def small_model(shared: Shared) -> tuple[Llama, torch.optim.AdamW]:
    """The small model with random weights, and its optimizer."""
    model = Llama(ModelConfig.load(shared.folder / "models" / "small"))
    with torch.no_grad():
        draw_weights(model, 0)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def take_step(model: Llama, optimizer: torch.optim.AdamW) -> None:
    tokens = torch.arange(16).reshape(1, 16)
    model(tokens, tokens).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture
def opened(alone: Ranks, shared: Shared) -> Opened:
    def open_checkpoints(digest: str = DIGEST, **changes: Any) -> Checkpoints:
        config: TrainerConfig = shared.config(**changes)
        return Checkpoints(shared.folder / "checkpoints", config, alone, digest)

    return open_checkpoints


def saved(opened: Opened, shared: Shared, step: int = 3) -> Path:
    """The folder of a checkpoint of the small model."""
    model, optimizer = small_model(shared)
    opened().save(step, model, optimizer)
    return shared.folder / "checkpoints" / f"step-{step:08}"


def test_weights_moments_and_the_count_of_steps_come_back_to_the_last_bit(opened: Opened, shared: Shared) -> None:
    model, optimizer = small_model(shared)
    for _ in range(3):
        take_step(model, optimizer)
    opened().save(3, model, optimizer)
    take_step(model, optimizer)

    other, other_optimizer = small_model(shared)
    checkpoints = opened()
    assert checkpoints.newest() == 3
    checkpoints.load(3, other, other_optimizer)
    take_step(other, other_optimizer)
    for parameter, expected in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(parameter, expected)
    counts = {float(moments["step"]) for moments in other_optimizer.state.values()}
    assert counts == {4.0}


def test_a_save_before_the_first_step_does_not_change_the_run(opened: Opened, shared: Shared) -> None:
    """torch's `get_optimizer_state_dict` takes a step of its own to make the moments."""
    untouched, expected_optimizer = small_model(shared)
    model, optimizer = small_model(shared)
    opened().save(0, model, optimizer)
    for _ in range(2):
        take_step(untouched, expected_optimizer)
        take_step(model, optimizer)
    for parameter, expected in zip(model.parameters(), untouched.parameters(), strict=True):
        assert torch.equal(parameter, expected)


class SlowStager(DefaultStager):
    """Begins its copy long after it was asked to."""

    def _stage(self, state_dict: Any, **kwargs: Any) -> Any:
        time.sleep(0.3)
        return super()._stage(state_dict, **kwargs)


def test_what_is_written_beside_training_is_the_state_when_it_began(
    opened: Opened, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = StagingOptions(
        use_pinned_memory=False, use_shared_memory=False, use_async_staging=True, use_non_blocking_copy=False
    )
    monkeypatch.setattr("trainer.checkpoint._stager", lambda _: SlowStager(options))
    model, optimizer = small_model(shared)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    checkpoints = opened()
    checkpoints.start_saving(1, model, optimizer)
    for _ in range(5):
        take_step(model, optimizer)
    checkpoints.finish()
    other, other_optimizer = small_model(shared)
    take_step(other, other_optimizer)
    opened().load(1, other, other_optimizer)
    for parameter, expected in zip(other.parameters(), before, strict=True):
        assert torch.equal(parameter, expected)


def test_a_save_counts_as_soon_as_it_is_written_and_not_before(opened: Opened, shared: Shared) -> None:
    """Committed at the next save only, a whole checkpoint was once lost to a kill between the two."""
    model, optimizer = small_model(shared)
    checkpoints = opened()
    checkpoints.start_saving(1, model, optimizer)
    assert committed_steps(shared.folder / "checkpoints") == set()
    deadline = time.monotonic() + 20
    while not committed_steps(shared.folder / "checkpoints"):
        assert time.monotonic() < deadline
        checkpoints.poll()
        time.sleep(0.01)
    assert committed_steps(shared.folder / "checkpoints") == {1}


def test_a_step_that_is_being_saved_is_not_saved_again(opened: Opened, shared: Shared) -> None:
    model, optimizer = small_model(shared)
    checkpoints = opened()
    checkpoints.start_saving(1, model, optimizer)
    checkpoints.finish()
    metadata = shared.folder / "checkpoints" / "step-00000001" / ".metadata"
    written = metadata.stat().st_mtime_ns
    # Another rank may look before rank 0's rename is to be seen; no rank may go by what it sees.
    metadata.parent.rename(metadata.parent.with_name("out-of-sight"))
    checkpoints.save(1, model, optimizer)
    assert committed_steps(shared.folder / "checkpoints") == set()
    metadata.parent.with_name("out-of-sight").rename(metadata.parent)
    assert metadata.stat().st_mtime_ns == written


def test_the_newest_are_kept_and_an_old_one_is_never_half_there(
    opened: Opened, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = small_model(shared)
    checkpoints = opened(checkpoints_to_keep=2)
    for step in (1, 2, 3):
        checkpoints.save(step, model, optimizer)
    folder = shared.folder / "checkpoints"
    assert committed_steps(folder) == {2, 3}

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(4, model, optimizer)
    assert committed_steps(folder) == {3, 4}
    monkeypatch.undo()
    checkpoints.save(5, model, optimizer)
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000004", "step-00000005"]


def lose_metadata(path: Path) -> None:
    (path / ".metadata").unlink()


def tear_metadata(path: Path) -> None:
    whole = (path / ".metadata").read_bytes()
    (path / ".metadata").write_bytes(whole[: len(whole) // 2])


def tear_a_shard(path: Path) -> None:
    shard = next(path.glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-1])


def lose_a_shard(path: Path) -> None:
    next(path.glob("*.distcp")).unlink()


def tear_the_options(path: Path) -> None:
    (path / RUN_FILE).write_text("{", encoding="utf-8")


@pytest.mark.parametrize("damage", [lose_metadata, tear_metadata, tear_a_shard, lose_a_shard, tear_the_options])
def test_a_damaged_checkpoint_is_refused_and_neither_passed_over_nor_started_without(
    opened: Opened, shared: Shared, damage: Callable[[Path], None]
) -> None:
    saved(opened, shared, step=2)
    path = saved(opened, shared, step=3)
    damage(path)
    with pytest.raises(ConfigError) as caught:
        opened().newest()
    said = str(caught.value)
    assert said.startswith(f"{path}: cannot be read (")
    assert said.endswith("restore it, or move it away to resume from the checkpoint before it")
    path.rename(path.with_name("away"))
    assert opened().newest() == 2


def test_what_is_unfinished_or_a_stranger_is_no_checkpoint(opened: Opened, shared: Shared) -> None:
    path = saved(opened, shared)
    path.rename(path.with_suffix(".partial"))
    (path.parent / "step-x").mkdir()
    (path.parent / "notes").mkdir()
    assert opened().newest() is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"seed": 1}, "seed: a resumed run must keep 0, got 1; set it back, or give this training another `run`"),
        ({"data": "data/held-out"}, "data: a resumed run must keep 'data/train', got 'data/held-out'"),
        ({"data_format": "tokens"}, "data_format: a resumed run must keep 'text', got 'tokens'"),
        ({"sequence_length": 8}, "sequence_length: a resumed run must keep 16, got 8"),
        ({"global_batch_size": 4}, "global_batch_size: a resumed run must keep 8, got 4"),
        ({"model": "models/other"}, "model: a resumed run must keep 'models/small', got 'models/other'"),
        ({"model_parameters": 5}, "model_parameters: a resumed run must keep"),
        ({"initial_weights": "pretrained"}, "initial_weights: a resumed run must keep 'random', got 'pretrained'"),
        ({"digest": "4567"}, "data: a resumed run must keep the tokens it began with, got others in data/train"),
    ],
)
def test_an_option_that_a_resume_cannot_honour_is_refused_by_name(
    opened: Opened, shared: Shared, changes: dict[str, Any], expected: str
) -> None:
    saved(opened, shared)
    with pytest.raises(ConfigError) as caught:
        opened(**changes).newest()
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "changes", [{"strategy": "NO_SHARD"}, {"micro_batch_size": 1}, {"learning_rate": 1.0}, {"steps": 99}]
)
def test_what_says_only_how_to_go_on_may_change(opened: Opened, shared: Shared, changes: dict[str, Any]) -> None:
    saved(opened, shared)
    assert opened(**changes).newest() == 3


def test_a_checkpoint_says_what_run_it_is_of(opened: Opened, shared: Shared) -> None:
    run = json.loads((saved(opened, shared) / RUN_FILE).read_text(encoding="utf-8"))
    assert TrainerConfig.model_validate({k: v for k, v in run.items() if k != "data_digest"}) == shared.config()
