"""A mistake at the start of a run ends with status 2 and one sentence, from one rank, and writes no record."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.trainer.conftest import REPOSITORY, Shared


def start(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    bare = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return subprocess.run(
        [sys.executable, "-m", "trainer", *arguments],
        cwd=REPOSITORY,
        env=bare | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"steps": None}, "steps, epochs: exactly one of the two sets the length of the run"),
        (
            {"global_batch_size": 7},
            "global_batch_size: must be a multiple of micro_batch_size 2 x world size 2 = 4, got 7",
        ),
        (
            {"strategy": "HYBRID_SHARD", "shard_group_size": 2},
            "HYBRID_SHARD needs a world size that is two or more shard",
        ),
        ({"device": "cuda"}, "device: cuda needs 1 GPUs on this node, and torch sees 0"),
        ({"model": "models/none"}, "models/none/config.json: no such file; put Hugging Face's model folder there"),
        ({"data": "data/none"}, "data/none: no such file or folder; put the data there"),
        ({"initial_weights": "pretrained"}, "has neither model.safetensors nor model.safetensors.index.json"),
        ({"global_batch_size": 4000}, "data: must hold at least global_batch_size 4000 sequences of 16 tokens"),
    ],
)
def test_a_mistake_is_one_sentence_from_one_rank(shared: Shared, changes: dict[str, Any], expected: str) -> None:
    ended = shared.run(2, **changes)
    assert [status for status, _, _ in ended] == [2, 2], ended[0][2]
    sentence = ended[0][2].strip()
    assert expected in sentence
    assert "\n" not in sentence
    assert ended[1][2] == ""
    assert not (shared.folder / "runs" / "test" / "checkpoints").exists()
    assert not (shared.folder / "runs" / "test" / "metrics.jsonl").exists()


def test_a_process_without_a_place_among_ranks_says_how_to_start_one(shared: Shared) -> None:
    path = shared.folder / "run.yaml"
    path.write_text(str(shared.options()), encoding="utf-8")
    done = start("--config", str(path))
    assert done.returncode == 2
    assert "environment: RANK is not set; start the trainer by torchrun" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--steps=3"]])
def test_a_call_without_a_config_says_the_form(arguments: list[str]) -> None:
    done = start(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: torchrun … -m trainer --config FILE [--field=value …]")


def test_a_bad_config_is_found_before_torch_is_imported(tmp_path: Any) -> None:
    (tmp_path / "run.yaml").write_text("modle: x", encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from trainer.__main__ import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)",
            f"--config={tmp_path}/run.yaml",
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "there is no option `modle`; did you mean `model`?" in done.stderr
