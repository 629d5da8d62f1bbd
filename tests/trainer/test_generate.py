from __future__ import annotations

from pathlib import Path

import torch

from tests.trainer.conftest import Shared
from tests.trainer.test_model import CPU, reference
from trainer.generate import generate, load_model, main


def test_the_likeliest_continuation_is_that_of_transformers(tmp_path: Path) -> None:
    theirs = reference(tmp_path)
    expected = theirs.generate(
        torch.tensor([[5, 6, 7]]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    model = load_model(tmp_path, CPU)
    added = generate(model, [5, 6, 7], new_tokens=12, temperature=0, top_k=1, seed=0)
    assert added == expected[0, 3:].tolist()


def test_a_draw_follows_its_seed_and_keeps_to_the_likeliest(tmp_path: Path) -> None:
    reference(tmp_path)
    model = load_model(tmp_path, CPU)
    draws = [generate(model, [5], new_tokens=20, temperature=5.0, top_k=40, seed=seed) for seed in (0, 0, 1)]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]
    assert generate(model, [5], new_tokens=20, temperature=5.0, top_k=1, seed=3) == generate(
        model, [5], new_tokens=20, temperature=0, top_k=1, seed=4
    )


def test_a_run_without_an_export_is_one_sentence(shared: Shared, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    (shared.folder / "run.yaml").write_text(str(shared.options()), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["generate", "--config", str(shared.folder / "run.yaml"), "--prompt", "aba"])
    assert main() == 2
    assert "run test exports its model when it finishes" in capsys.readouterr().err
