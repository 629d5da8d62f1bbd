"""Weights between a sharded model and Hugging Face's safetensors files. No rank ever holds the whole model."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from trainer.config import ConfigError
from trainer.model import Llama

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
STEP_FILE = "training_step.json"
COPIED_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
)

# Rows drawn from one seed, so that a shard's numbers do not depend on how many ranks share the parameter.
ROWS_PER_DRAW = 64


def local_rows(parameter: Tensor) -> tuple[int, int]:
    """First row and row count that this rank holds of a parameter, which is sharded by rows or not at all."""
    if not isinstance(parameter, DTensor):
        return 0, parameter.shape[0]
    rows, first = parameter.shape[0], 0
    for axis, placement in enumerate(parameter.placements):
        if isinstance(placement, Shard):
            assert placement.dim == 0, "fully_shard shards by rows"
            # torch.chunk's rule: equal chunks, rounded up, the last ones shorter or empty.
            chunk = -(-rows // parameter.device_mesh.size(axis))
            first = min(chunk * parameter.device_mesh.get_local_rank(axis), rows)
            rows = min(chunk, rows - first)
    return first, rows


def local_part(parameter: Tensor) -> Tensor:
    """The rows that this rank holds, as a plain tensor that shares their memory."""
    local: Tensor = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    return local.detach()


def draw_weights(model: Llama, seed: int) -> None:
    """Draw every parameter from `seed`, the same numbers for any number of ranks. Norms start at one."""
    for name, parameter in model.named_parameters():
        local = local_part(parameter)
        if parameter.ndim == 1:
            local.fill_(1.0)
            continue
        first, rows = local_rows(parameter)
        generator = torch.Generator()
        for block in range(first // ROWS_PER_DRAW, -(-(first + rows) // ROWS_PER_DRAW)):
            generator.manual_seed(zlib.crc32(f"{seed} {name} {block}".encode()))
            drawn = torch.randn(ROWS_PER_DRAW, parameter.shape[1], generator=generator)
            start, stop = max(first, block * ROWS_PER_DRAW), min(first + rows, (block + 1) * ROWS_PER_DRAW)
            part = drawn[start - block * ROWS_PER_DRAW : stop - block * ROWS_PER_DRAW]
            local[start - first : stop - first].copy_(part * model.config.initializer_range)


def load_weights(model: Llama, folder: Path) -> None:
    """Read every parameter's own rows from the safetensors files in `folder`, cast to the parameter's type.

    Raises:
        ConfigError: a file is missing or torn, a parameter is in no file or of another shape, or a file has more.
    """
    files = tensor_files(folder)
    expected = dict(model.named_parameters())
    if model.config.tie_word_embeddings:
        files.pop("lm_head.weight", None)  # some exports repeat the tied weight
    if missing := sorted(expected.keys() - files.keys()):
        raise ConfigError(
            f"{folder}: {missing[0]} is in no safetensors file, and {len(missing)} are missing in all; "
            "copy the model again"
        )
    strangers = sorted(name for name in files.keys() - expected.keys() if not name.endswith("rotary_emb.inv_freq"))
    if strangers:
        raise ConfigError(
            f"{folder}: {strangers[0]} belongs to no parameter of the model that config.json describes; copy both again"
        )
    for path in sorted(set(files.values())):
        with _opened(path) as tensors:
            for name in (name for name, file in files.items() if file == path and name in expected):
                parameter = expected[name]
                stored = tensors.get_slice(name)
                if list(stored.get_shape()) != list(parameter.shape):
                    raise ConfigError(
                        f"{path}: {name} must have shape {list(parameter.shape)} by config.json, "
                        f"got {stored.get_shape()}; copy the model again"
                    )
                first, rows = local_rows(parameter)
                if rows:
                    local_part(parameter).copy_(stored[first : first + rows])


def tensor_files(folder: Path) -> dict[str, Path]:
    """Tensor name to the safetensors file that holds it.

    Raises:
        ConfigError: there are none, or one that the index names is missing or torn.
    """
    index = folder / INDEX
    if index.is_file():
        names: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: folder / file for name, file in names.items()}
    path = folder / SINGLE
    if not path.is_file():
        raise ConfigError(
            f"{folder}: has neither {SINGLE} nor {INDEX}; put the model's safetensors files there, "
            "or start from initial_weights: random"
        )
    with _opened(path) as tensors:
        return dict.fromkeys(tensors.keys(), path)


def save_weights(
    model: Llama,
    folder: Path,
    *,
    source: Path,
    step: int,
    dtype: torch.dtype = torch.bfloat16,
    max_file_bytes: int = 5_000_000_000,
) -> None:
    """Write the model as a Hugging Face folder: safetensors files, their index, and the small files of `source`.

    Every rank calls it. Files are dealt out to the ranks, and none holds more than one of them. The folder appears
    whole or not at all, and names `step`, the step that its weights are of, for `exported_step`.
    """
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    partial = folder.with_name(f"{folder.name}.partial")
    if rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    _wait_for_all()
    parameters = dict(model.named_parameters())
    files = list(_files(parameters, dtype, max_file_bytes))
    names = (
        [SINGLE]
        if len(files) == 1
        else [f"model-{i:05}-of-{len(files):05}.safetensors" for i in range(1, len(files) + 1)]
    )
    for index, tensor_names in enumerate(files):
        is_mine = index % world_size == rank
        held: dict[str, Tensor] = {}
        for name in tensor_names:
            parameter = parameters[name].detach()
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            if is_mine:
                held[name] = whole.to(device="cpu", dtype=dtype).contiguous()
        if is_mine:
            save_file(held, partial / names[index], metadata={"format": "pt"})
    _wait_for_all()
    if rank == 0:
        if len(files) > 1:
            total = sum(parameter.numel() * dtype.itemsize for parameter in parameters.values())
            weight_map = {name: names[index] for index, group in enumerate(files) for name in group}
            text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2)
            (partial / INDEX).write_text(text, encoding="utf-8")
        for name in COPIED_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, partial / name)
        (partial / STEP_FILE).write_text(json.dumps({"step": step}), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    _wait_for_all()


def exported_step(folder: Path) -> int | None:
    """The step that an export's weights are of, None where there is no export."""
    try:
        step: int = json.loads((folder / STEP_FILE).read_text(encoding="utf-8"))["step"]
    except (OSError, ValueError, KeyError):
        return None
    return step


def _files(parameters: Mapping[str, Tensor], dtype: torch.dtype, max_file_bytes: int) -> Iterator[list[str]]:
    """Parameter names, in order, cut into files of at most that size, or of one parameter."""
    group: list[str] = []
    size = 0
    for name, parameter in parameters.items():
        wanted = parameter.numel() * dtype.itemsize
        if group and size + wanted > max_file_bytes:
            yield group
            group, size = [], 0
        group.append(name)
        size += wanted
    yield group


def _wait_for_all() -> None:
    if dist.is_initialized():
        dist.barrier()


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ConfigError(
            f"{path}: must be a whole safetensors file, got one that cannot be read ({error}); copy it again"
        ) from None
