"""Strategies by what they do, on two and four ranks with gloo, against the unsharded model."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import spawn

from tests.trainer.conftest import PARAMETERS, SHAPE, write_shared
from tests.trainer.test_model import CPU, reference
from trainer.config import ConfigError, TrainerConfig
from trainer.generate import load_model
from trainer.model import Block
from trainer.parallel import build_mesh, build_model, describe
from trainer.weights import local_part, save_weights

TOKENS = torch.arange(4 * 12).reshape(4, 12) % 97
LABELS = TOKENS.roll(-1, dims=1)

Check = Callable[[TrainerConfig, Path], None]


def _rank(rank: int, world_size: int, port: int, folder: str, checks: list[tuple[Check, dict[str, Any]]]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    shared = write_shared_config(Path(folder))
    for check, changes in checks:
        check(shared(**changes), Path(folder))
    dist.destroy_process_group()


def write_shared_config(folder: Path) -> Callable[..., TrainerConfig]:
    from tests.trainer.conftest import Shared

    return Shared(folder).config


def on_ranks(world_size: int, folder: Path, *checks: tuple[Check, dict[str, Any]]) -> None:
    """Run the checks one after another in as many processes as there are ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spawn(_rank, args=(world_size, port, str(folder), list(checks)), nprocs=world_size)


def _loss_and_gradients_are_the_reference(config: TrainerConfig, folder: Path) -> None:
    world_size, rank = dist.get_world_size(), dist.get_rank()
    mesh = build_mesh(config, world_size)
    model = build_model(config, mesh, CPU)
    mine = slice(rank * 4 // world_size, (rank + 1) * 4 // world_size)
    loss = model(TOKENS[mine], LABELS[mine]) / LABELS.numel()
    loss.backward()
    total = loss.detach().clone()
    dist.all_reduce(total)
    alone = load_model(folder / config.model, CPU)
    expected = alone(TOKENS, LABELS) / LABELS.numel()
    expected.backward()
    torch.testing.assert_close(total, expected.detach(), rtol=1e-5, atol=1e-6)
    expected_gradients = {name: parameter.grad for name, parameter in alone.named_parameters()}
    for name, parameter in model.named_parameters():
        assert isinstance(parameter.grad, DTensor)
        torch.testing.assert_close(parameter.grad.full_tensor(), expected_gradients[name], rtol=1e-4, atol=1e-6)


def _mesh_and_memory_are_those_of_the_strategy(config: TrainerConfig, folder: Path) -> None:  # noqa: ARG001
    world_size = dist.get_world_size()
    mesh = build_mesh(config, world_size)
    model = build_model(config, mesh, CPU)
    shards = {"FULL_SHARD": world_size, "SHARD_GRAD_OP": world_size, "HYBRID_SHARD": 2, "NO_SHARD": 1}[config.strategy]
    held = sum(local_part(parameter).numel() for parameter in model.parameters())
    assert held == pytest.approx(PARAMETERS / shards, rel=0.05)
    assert f"dp_shard {shards}" in describe(model, mesh)
    replicas = world_size // shards
    assert (f"dp_replicate {replicas}" in describe(model, mesh)) == (config.strategy in ("HYBRID_SHARD", "NO_SHARD"))

    # Between forward and backward, a block's parameters are whole where the strategy keeps them, and sharded elsewhere.
    block = model.model.layers[0]
    assert isinstance(block, Block)
    assert isinstance(block, FSDPModule)
    loss = model(TOKENS[:1], LABELS[:1])
    is_sharded = isinstance(block.mlp.up_proj.weight, DTensor)
    assert is_sharded == (config.strategy in ("FULL_SHARD", "HYBRID_SHARD"))
    loss.backward()


def _random_weights_do_not_depend_on_the_ranks(config: TrainerConfig, folder: Path) -> None:
    model = build_model(config, build_mesh(config, dist.get_world_size()), CPU)
    path = folder / "drawn.pt"
    drawn = {name: parameter.full_tensor() for name, parameter in model.named_parameters()}  # type: ignore[attr-defined]
    if path.exists():
        for name, value in torch.load(path).items():
            assert torch.equal(value, drawn[name]), name
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save(drawn, path)
    dist.barrier()


def _an_export_of_shards_is_the_whole_model(config: TrainerConfig, folder: Path) -> None:
    model = build_model(config, build_mesh(config, dist.get_world_size()), CPU)
    out = folder / f"export-{dist.get_world_size()}"
    save_weights(model, out, source=folder / config.model, step=1, dtype=torch.float32, max_file_bytes=20_000)
    exported, original = load_model(out, CPU), load_model(folder / config.model, CPU)
    torch.testing.assert_close(exported(TOKENS), original(TOKENS), rtol=0, atol=0)


def _bf16_computes_in_bf16_over_fp32_masters(config: TrainerConfig, folder: Path) -> None:  # noqa: ARG001
    model = build_model(config, build_mesh(config, dist.get_world_size()), CPU)
    seen: list[torch.dtype] = []
    model.model.layers[0].register_forward_hook(lambda *call: seen.append(call[2].dtype))
    model(TOKENS[:1], LABELS[:1]).backward()
    assert seen == [torch.bfloat16]
    for parameter in model.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32


def _recomputed_layers_change_nothing_but_the_work(config: TrainerConfig, folder: Path) -> None:  # noqa: ARG001
    model = build_model(config, build_mesh(config, dist.get_world_size()), CPU)
    calls: list[int] = []
    # Before its work, since a recomputation ends as soon as it has what the backward pass needs.
    block = model.model.layers[0]
    assert isinstance(block, Block)
    block.mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    model(TOKENS[:1], LABELS[:1]).backward()
    assert len(calls) == (2 if config.activation_checkpointing == "full" else 1)


PRETRAINED = {"initial_weights": "pretrained", "model": "models/reference"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("parallel")
    write_shared(made)
    reference(made / "models" / "reference")
    return made


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_strategy_computes_what_one_process_computes_and_keeps_what_it_says(
    folder: Path, world_size: int
) -> None:
    strategies: list[dict[str, Any]] = [
        {"strategy": "FULL_SHARD"},
        {"strategy": "SHARD_GRAD_OP"},
        {"strategy": "NO_SHARD"},
    ]
    if world_size == 4:
        strategies.append({"strategy": "HYBRID_SHARD", "shard_group_size": 2})
    on_ranks(
        world_size,
        folder,
        *((_loss_and_gradients_are_the_reference, PRETRAINED | strategy) for strategy in strategies),
        *((_mesh_and_memory_are_those_of_the_strategy, strategy) for strategy in strategies),
        (_random_weights_do_not_depend_on_the_ranks, {}),
        (_an_export_of_shards_is_the_whole_model, PRETRAINED),
        (_bf16_computes_in_bf16_over_fp32_masters, {"precision": "bf16"}),
        (_recomputed_layers_change_nothing_but_the_work, {"activation_checkpointing": "full"}),
        (_recomputed_layers_change_nothing_but_the_work, {"activation_checkpointing": "none"}),
    )


def test_a_model_of_another_size_than_stated_is_refused(folder: Path, single_rank: Callable[[], None]) -> None:
    single_rank()
    config = write_shared_config(folder)(model_parameters=5)
    with pytest.raises(ConfigError, match=f"model_parameters: must be the {PARAMETERS} that"):
        build_model(config, build_mesh(config, 1), CPU)


def test_a_sequence_longer_than_the_models_positions_is_refused(folder: Path, single_rank: Callable[[], None]) -> None:
    single_rank()
    config = write_shared_config(folder)(sequence_length=65)
    with pytest.raises(ConfigError, match="sequence_length: must not exceed max_position_embeddings 64 of"):
        build_model(config, build_mesh(config, 1), CPU)


def test_a_weight_that_is_no_number_is_refused_before_training(tmp_path: Path, single_rank: Callable[[], None]) -> None:
    shared = write_shared(tmp_path)
    model = reference(tmp_path / "models" / "broken", **{key: SHAPE[key] for key in ("vocab_size",)})
    with torch.no_grad():
        model.model.norm.weight[3] = torch.nan
    model.save_pretrained(tmp_path / "models" / "broken")
    single_rank()
    config = shared.config(model="models/broken", initial_weights="pretrained")
    with pytest.raises(ConfigError, match=r"model\.norm\.weight has no value or is not a number"):
        build_model(config, build_mesh(config, 1), CPU)
