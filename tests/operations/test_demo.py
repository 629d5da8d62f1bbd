"""The demo's parts, where a wrong one would make its figures lie."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from config.loader import load_config
from operations.demo.english import TINY_LLAMA, manual, split, unigram_loss, write_english
from operations.demo.manifests import operator_environment
from operations.demo.report import replays, steps_run
from tests.operations.conftest import REPOSITORY
from trainer.tokenize import load_tokenizer


def test_no_paragraph_of_the_held_out_text_is_trained_on() -> None:
    """Topics of the manual quote one another: a fifth of the text occurs twice."""
    paragraphs = manual()
    assert len(set(paragraphs)) == len(paragraphs)
    training, held_out = split(paragraphs)
    trained = set(training.split("\n\n"))
    leaked = [p for p in held_out.split("\n\n") if len(p) > 40 and p in trained]
    assert leaked == []
    assert 0.07 < len(held_out) / (len(training) + len(held_out)) < 0.13


def test_the_unigram_loss_is_the_entropy_of_a_uniform_text() -> None:
    ids = list(range(1024)) * 200
    assert abs(unigram_loss(ids, ids) - math.log(1024)) < 1e-9


def test_what_is_written_is_what_the_job_names(tmp_path: Path) -> None:
    options = load_config(REPOSITORY / "config/platforms/local.yaml").jobs[0].trainer
    assert options.held_out_data is not None
    english = write_english(tmp_path, model=options.model, data=options.data, held_out=options.held_out_data)
    tokenizer, end = load_tokenizer(tmp_path / options.model)
    assert tokenizer.get_vocab_size() == TINY_LLAMA["vocab_size"]
    assert end == TINY_LLAMA["eos_token_id"]
    text = (tmp_path / options.data / "manual.txt").read_text(encoding="utf-8")
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert 4.5 < english.unigram_loss < 7.0


def record(step: int, loss: float, norm: float = 1.0) -> dict[str, Any]:
    return {"step": step, "loss": loss, "gradient_norm": norm}


def test_a_replay_counts_as_identical_only_to_the_last_bit() -> None:
    loss = 3.3
    metrics = [record(1, loss), record(2, 2.0), record(3, 1.0), {"event": "start"}]
    assert replays([*metrics, record(2, 2.0), record(3, 1.0)]) == (2, 2)
    assert replays([*metrics, record(2, 2.0), record(3, math.nextafter(1.0, 2))]) == (2, 1)
    assert replays([*metrics, record(2, 2.0, norm=1.0000001)]) == (1, 0)
    assert replays(metrics) == (0, 0)
    assert list(steps_run([*metrics, record(4, 1.0)])) == [1, 2, 3, 4]


def test_workers_get_what_the_training_operator_would_add() -> None:
    elastic = {
        "minReplicas": 2,
        "maxReplicas": 2,
        "maxRestarts": 20,
        "rdzvBackend": "etcd-v2",
        "rdzvHost": "etcd.training.svc.cluster.local",
        "rdzvPort": 2379,
        "rdzvId": "tiny-1",
        "rdzvConf": [{"key": "last_call_timeout", "value": "5"}, {"key": "read_timeout", "value": "60"}],
    }
    assert operator_environment({"spec": {"nprocPerNode": "1", "elasticPolicy": elastic}}) == {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "1",
        "PET_NNODES": "2:2",
        "PET_RDZV_BACKEND": "etcd-v2",
        "PET_RDZV_ENDPOINT": "etcd.training.svc.cluster.local:2379",
        "PET_RDZV_ID": "tiny-1",
        "PET_MAX_RESTARTS": "20",
        "PET_RDZV_CONF": "last_call_timeout=5,read_timeout=60",
    }
