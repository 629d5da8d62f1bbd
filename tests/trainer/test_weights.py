from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.trainer.test_model import CPU, reference
from trainer.config import ConfigError
from trainer.generate import load_model
from trainer.model import Llama, ModelConfig
from trainer.weights import INDEX, SINGLE, draw_weights, exported_step, save_weights

TOKENS = torch.arange(30).reshape(2, 15)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("max_file_bytes", [10**9, 20_000])
def test_an_export_loads_in_transformers_and_computes_the_same(tmp_path: Path, tied: bool, max_file_bytes: int) -> None:
    reference(tmp_path / "source", tie_word_embeddings=tied)
    model = load_model(tmp_path / "source", CPU)
    out = tmp_path / "out"
    save_weights(model, out, source=tmp_path / "source", step=1, dtype=torch.float32, max_file_bytes=max_file_bytes)
    assert (out / INDEX).exists() == (max_file_bytes < 10**9)
    theirs = transformers.LlamaForCausalLM.from_pretrained(out)
    torch.testing.assert_close(theirs(TOKENS).logits, model(TOKENS), rtol=0, atol=1e-6)
    torch.testing.assert_close(load_model(out, CPU)(TOKENS), model(TOKENS), rtol=0, atol=0)


def test_an_export_replaces_the_one_before_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    reference(tmp_path / "source")
    model = load_model(tmp_path / "source", CPU)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "stale.safetensors").write_bytes(b"x")
    save_weights(model, tmp_path / "out", source=tmp_path / "source", step=1)
    assert not (tmp_path / "out" / "stale.safetensors").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_an_export_knows_the_step_of_its_weights(tmp_path: Path) -> None:
    """A run made longer that died before its export would else hand out the shorter run's weights as its own."""
    reference(tmp_path / "source")
    model = load_model(tmp_path / "source", CPU)
    save_weights(model, tmp_path / "out", source=tmp_path / "source", step=7)
    assert exported_step(tmp_path / "out") == 7
    assert exported_step(tmp_path / "source") is None


def test_a_bf16_file_gives_fp32_masters_of_the_same_values(tmp_path: Path) -> None:
    reference(tmp_path).bfloat16().save_pretrained(tmp_path)
    stored = load_file(tmp_path / SINGLE)
    model = load_model(tmp_path, CPU)
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter.detach(), stored[name].float())


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("missing tensor", "model.norm.weight is in no safetensors file"),
        ("unknown tensor", "stranger belongs to no parameter"),
        ("other shape", r"model.norm.weight must have shape \[32\] by config.json, got \[33\]"),
        ("truncated", "must be a whole safetensors file"),
        ("no file", "has neither model.safetensors nor model.safetensors.index.json"),
        ("missing part", "must be a whole safetensors file"),
    ],
)
def test_a_damaged_model_is_refused_in_one_sentence(tmp_path: Path, damage: str, expected: str) -> None:
    reference(tmp_path)
    path = tmp_path / SINGLE
    tensors = load_file(path)
    match damage:
        case "missing tensor":
            del tensors["model.norm.weight"]
            save_file(tensors, path)
        case "unknown tensor":
            save_file(tensors | {"stranger": torch.zeros(1)}, path)
        case "other shape":
            save_file(tensors | {"model.norm.weight": torch.zeros(33)}, path)
        case "truncated":
            path.write_bytes(path.read_bytes()[:-100])
        case "no file":
            path.unlink()
        case "missing part":
            path.unlink()
            (tmp_path / INDEX).write_text('{"weight_map": {"model.norm.weight": "gone.safetensors"}}', encoding="utf-8")
            names = [name for name in tensors if name != "model.norm.weight"]
            save_file({name: tensors[name] for name in names}, tmp_path / "here.safetensors")
            weight_map = dict.fromkeys(names, "here.safetensors") | {"model.norm.weight": "gone.safetensors"}
            (tmp_path / INDEX).write_text(f'{{"weight_map": {weight_map}}}'.replace("'", '"'), encoding="utf-8")
    with pytest.raises(ConfigError, match=expected) as caught:
        load_model(tmp_path, CPU)
    assert "\n" not in str(caught.value)


def test_random_weights_follow_the_seed_and_the_loss_starts_near_chance(tmp_path: Path) -> None:
    reference(tmp_path)
    models = [Llama(ModelConfig.load(tmp_path)) for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        with torch.no_grad():
            draw_weights(model, seed)
    first, same, other = (model.lm_head.weight for model in models)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert first.std().item() == pytest.approx(0.02, rel=0.05)
    labels = torch.randint(0, 97, TOKENS.shape)
    loss = models[0](TOKENS, labels).item() / labels.numel()
    assert loss == pytest.approx(torch.tensor(97.0).log().item(), abs=0.1)
