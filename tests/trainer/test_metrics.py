from __future__ import annotations

from typing import Any

from trainer.metrics import perplexity, step_line

RECORD: dict[str, Any] = {
    "step": 7,
    "loss": 3.25,
    "gradient_norm": 0.5,
    "learning_rate": 2e-5,
    "tokens_per_second_per_gpu": 9876.5,
    "mfu": 0.412,
    "memory_gib": 61.5,
}


def test_a_step_is_a_line_with_every_figure_and_its_unit() -> None:
    assert step_line(RECORD, 100) == (
        "step      7/100  loss  3.2500  norm  0.500  lr 2.00e-05     9,876 tokens/s/GPU  mfu  41.2%  memory 61.50 GiB"
    )


def test_no_mfu_is_claimed_without_a_peak() -> None:
    assert "mfu" not in step_line(RECORD | {"mfu": None}, 100)


def test_perplexity_of_a_hopeless_model_is_a_number() -> None:
    assert perplexity(0.0) == 1.0
    assert perplexity(1e9) < float("inf")
