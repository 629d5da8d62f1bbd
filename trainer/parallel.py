"""From a config to a model that is sharded as asked, has memory and has values, in the order that matters."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from trainer.config import ConfigError, TrainerConfig
from trainer.model import Llama, ModelConfig
from trainer.schedule import mesh_axes
from trainer.weights import draw_weights, load_weights, local_part


def build_mesh(config: TrainerConfig, world_size: int) -> DeviceMesh:
    """The device mesh of the strategy: axes `dp_replicate` and `dp_shard`, or `dp_shard` alone.

    Raises:
        ConfigError: the world cannot be cut so.
    """
    axes = mesh_axes(config.strategy, world_size=world_size, shard_group_size=config.shard_group_size)
    return init_device_mesh(config.device, tuple(axes.values()), mesh_dim_names=tuple(axes))


def build_model(config: TrainerConfig, mesh: DeviceMesh, device: torch.device) -> Llama:
    """Shapes first, then sharding, then memory, then values: each needs the one before it.

    Masters are fp32 whatever the file's type; blocks compute in `config.precision`; gradients are reduced in fp32.

    Raises:
        ConfigError: the model's files are not what the config says.
    """
    folder = Path(config.shared_dir) / config.model
    model_config = ModelConfig.load(folder)
    if model_config.parameters() != config.model_parameters:
        raise ConfigError(
            f"model_parameters: must be the {model_config.parameters()} that {folder}/config.json describes, "
            f"got {config.model_parameters}; correct it, or put the right model there"
        )
    if config.sequence_length > model_config.max_position_embeddings:
        raise ConfigError(
            f"sequence_length: must not exceed max_position_embeddings {model_config.max_position_embeddings} of "
            f"{folder}/config.json, got {config.sequence_length}; shorten it, or use a model with longer positions"
        )
    with torch.device("meta"):
        model = Llama(model_config)
    model.model.recomputes_layers = config.activation_checkpointing == "full"
    shard(model, config, mesh)
    model.to_empty(device=device)
    model.tie()
    with torch.no_grad():
        # to_empty leaves whatever was in memory; a mark that survives to the check below is a missing value.
        for parameter in model.parameters():
            local_part(parameter).fill_(torch.nan)
        if config.initial_weights == "random":
            draw_weights(model, config.seed)
        else:
            load_weights(model, folder)
        for name, parameter in model.named_parameters():
            if local_part(parameter).isnan().any():
                raise ConfigError(
                    f"{folder}: {name} has no value or is not a number in the model's files; copy the model again"
                )
    assert not list(model.buffers()), "a buffer would be left uninitialised"
    return model


def shard(model: Llama, config: TrainerConfig, mesh: DeviceMesh) -> None:
    """Apply FSDP2 as the strategy says: a group for each block, one each for an untied embedding and head."""
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if config.precision == "bf16" else torch.float32,
        reduce_dtype=torch.float32,
        # Angles of RoPE stay fp32; what flows between blocks has the compute type already.
        cast_forward_inputs=False,
    )
    # SHARD_GRAD_OP keeps the gathered parameters from forward to backward, and so gathers once a step, not twice.
    reshards = config.strategy in ("FULL_SHARD", "HYBRID_SHARD")
    if not model.config.tie_word_embeddings:
        fully_shard(model.model.embed_tokens, mesh=mesh, mp_policy=policy, reshard_after_forward=reshards)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshards)
    if not model.config.tie_word_embeddings:
        # Needed again at once, as the backward pass begins here.
        fully_shard([model.model.norm, model.lm_head], mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # The loss is divided by the global count of labels before the backward pass, so gradients are summed. gloo
            # knows no pre-multiplied sum, into which FSDP2 would otherwise turn a division factor.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def describe(model: Llama, mesh: DeviceMesh) -> str:
    """What was built, read off the model itself: mesh axes, groups, and what is held between forward and backward."""
    names = mesh.mesh_dim_names or ()
    axes = " x ".join(f"{name} {mesh.size(index)}" for index, name in enumerate(names))
    groups = sum(isinstance(module, FSDPModule) for module in model.modules())
    held = sum(local_part(parameter).numel() for parameter in model.parameters())
    return f"mesh {axes}, {groups} groups, {held:,} of {model.config.parameters():,} parameters on this rank"
