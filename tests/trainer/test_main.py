"""A mistake at the start of a run ends with status 2 and one sentence, from one rank, and writes no record."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import psutil
import pytest

from tests.trainer.conftest import PARAMETERS, REPOSITORY, Shared


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
        ({"model_parameters": 5}, f"model_parameters: must be the {PARAMETERS} that"),
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


def test_torchrun_restarts_all_after_the_loss_of_one_and_the_run_ends_as_if_nothing_was(
    shared: Shared, uninterrupted: Shared
) -> None:
    arguments = ["--standalone", "--nproc-per-node=2", "--max-restarts=2", "-m", "trainer"]
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *arguments, f"--config={shared.write_options()}", "--steps=12"],
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(shared.folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while max(shared.losses(), default=0) < 6:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        psutil.Process(process.pid).children()[1].kill()
        said, _ = process.communicate(timeout=60)
    finally:
        with suppress(psutil.NoSuchProcess):
            for worker in psutil.Process(process.pid).children():
                worker.kill()
        process.kill()
        process.communicate()
    assert process.returncode == 0, said
    starts = [record for record in shared.records() if record.get("event") == "start"]
    assert [(start["attempt"], start["restarts"], start["torchrun_restarts"]) for start in starts] == [
        (0, 0, 0),
        (1, 1, 1),
    ]
    assert starts[1]["resumed_from_step"] == 4
    for record in shared.records():
        if "loss" in record:
            assert record["loss"] == uninterrupted.losses()[record["step"]]
