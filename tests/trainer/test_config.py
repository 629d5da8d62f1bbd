"""What a user gets wrong in a run's options is one sentence with the field, the value, what is allowed and the fix."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from trainer.config import ConfigError, TrainerConfig, read_yaml

GOOD: dict[str, Any] = {
    "model": "models/x",
    "model_parameters": 5,
    "data": "data/x",
    "data_format": "text",
    "global_batch_size": 4,
    "steps": 10,
}


def written(folder: Path, values: dict[str, Any]) -> Path:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        (
            "sequence_lenght",
            64,
            "sequence_lenght: there is no option `sequence_lenght`; did you mean `sequence_length`?",
        ),
        ("model", None, "model: must be text, got null"),
        ("model", "/abs", "model: must be a path below shared_dir"),
        ("data", "a/../b", "data: must be a path below shared_dir"),
        ("shared_dir", "fsx", 'shared_dir: must be an absolute path, got "fsx"; start it with /'),
        ("epochs", 2, "steps, epochs: exactly one of the two sets the length of the run, got steps: 10 and epochs: 2"),
        ("steps", None, "steps, epochs: exactly one of the two sets the length of the run, got neither"),
        ("steps", 1.5, "steps: must be a whole number, got 1.5"),
        ("steps", True, "steps: must be a whole number, got true"),
        ("micro_batch_size", 0, "micro_batch_size: must be greater than 0, got 0"),
        ("learning_rate", float("nan"), "learning_rate: must be a finite number, got NaN"),
        (
            "strategy",
            "hybrid",
            "strategy: must be one of 'FULL_SHARD', 'HYBRID_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD', got",
        ),
        ("strategy", "HYBRID_SHARD", "shard_group_size: goes with strategy HYBRID_SHARD and no other"),
        ("shard_group_size", 8, "shard_group_size: goes with strategy HYBRID_SHARD and no other"),
        ("evaluate_every_steps", 5, "evaluate_every_steps: 5 needs held_out_data, which is absent"),
        ("warmup_steps", 11, "warmup_steps: must not exceed steps 10, got 11"),
        ("data_format", "parquet", "data_format: must be one of 'text', 'jsonl', 'tokens', got"),
        ("run", "A b", "run: must match"),
    ],
)
def test_a_mistake_in_a_run_is_one_sentence(tmp_path: Path, field: str, value: Any, expected: str) -> None:
    path = written(tmp_path, GOOD | {field: value})
    with pytest.raises(ConfigError) as caught:
        TrainerConfig.load(path)
    assert str(caught.value).startswith(f"{path}: {expected}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--step=3"], "--step: there is no option `step`; did you mean `steps`?"),
        (["--steps"], "--steps: a flag has the form --field=value"),
        (["steps=3"], "steps=3: a flag has the form --field=value"),
        (["--steps=3", "--steps=4"], "--steps: is given twice; keep one of the two"),
        (["--steps=three"], 'steps: must be a whole number, got "three"'),
        (["--steps="], 'steps: must be a whole number, got ""'),
        (["--steps=[3"], 'steps: must be a whole number, got "[3"'),
    ],
)
def test_a_mistake_in_a_flag_is_one_sentence(tmp_path: Path, flags: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainerConfig.load(written(tmp_path, GOOD), flags)
    assert expected in str(caught.value)


def test_a_flag_lies_over_the_file(tmp_path: Path) -> None:
    config = TrainerConfig.load(
        written(tmp_path, GOOD), ["--steps=3", "--learning_rate=2e-5", "--gradient_clip_norm=null"]
    )
    assert (config.steps, config.learning_rate, config.gradient_clip_norm) == (3, 2e-5, None)


def test_numbers_are_read_as_people_write_them(tmp_path: Path) -> None:
    """PyYAML alone reads 2e-5 as text, for want of a dot."""
    path = tmp_path / "run.yaml"
    path.write_text("a: 2e-5\nb: 1.5e3\nc: 1e5x\n", encoding="utf-8")
    assert read_yaml(path) == {"a": 2e-5, "b": 1500.0, "c": "1e5x"}


def test_a_run_survives_being_written_and_read_back(tmp_path: Path) -> None:
    config = TrainerConfig.load(written(tmp_path, GOOD))
    assert TrainerConfig.load(written(tmp_path, config.model_dump(mode="json"))) == config


def test_a_run_cannot_be_changed_after_it_was_checked(tmp_path: Path) -> None:
    config = TrainerConfig.load(written(tmp_path, GOOD))
    with pytest.raises(ValueError, match="frozen"):
        config.steps = 5  # type: ignore[misc]  # what mypy says, pydantic must say too
