from __future__ import annotations

import pytest
import torch

from tests.trainer.conftest import Shared
from trainer.data import open_rows
from trainer.parallel import build_mesh, build_model
from trainer.ranks import Ranks
from trainer.steps import Steps, adamw


@pytest.fixture
def steps(alone: Ranks, shared: Shared) -> Steps:
    """Steps of one rank over a freshly drawn model, each of four micro batches."""
    config = shared.config()
    model = build_model(config, build_mesh(config, 1), torch.device("cpu"))
    rows = open_rows(
        model=shared.folder / config.model,
        data=shared.folder / config.data,
        data_format="text",
        cache=shared.folder / "cache",
        sequence_length=config.sequence_length,
        vocab_size=97,
        once=lambda work: work(),
    )
    return Steps(config=config, ranks=alone, model=model, optimizer=adamw(model, config), rows=rows, total=12)


def test_gradients_are_reduced_with_the_last_micro_batch_alone(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    reduces: list[bool] = []
    monkeypatch.setattr(steps.model, "set_requires_gradient_sync", reduces.append)
    batches = steps.read(0)
    steps.take(batches, sum(batch.label_count() for batch in batches))
    assert reduces == [False, False, False, True]


def test_norms_are_not_decayed_and_all_else_is(steps: Steps) -> None:
    names = {id(parameter): name for name, parameter in steps.model.named_parameters()}
    decayed, kept = ({names[id(parameter)] for parameter in group["params"]} for group in steps.optimizer.param_groups)
    assert [group["weight_decay"] for group in steps.optimizer.param_groups] == [0.1, 0.0]
    assert decayed | kept == set(names.values())
    assert kept == {name for name in names.values() if "norm" in name}
    assert all(group["fused"] for group in steps.optimizer.param_groups)


def test_a_step_of_a_resumed_run_reads_what_it_would_have_read(steps: Steps) -> None:
    """Every row once an epoch, in an order that the seed decides."""
    per_epoch = len(steps.rows) // 8
    seen = [row for step in range(per_epoch) for micro in steps.indices(step) for row in micro]
    assert len(set(seen)) == len(seen) == per_epoch * 8
    assert steps.read(per_epoch - 1)[0].tokens.equal(steps.rows.batch(seen[-8:-6]).tokens)
