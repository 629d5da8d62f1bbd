from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.trainer.conftest import PARAMETERS, SHAPE, Shared
from trainer.config import ConfigError
from trainer.generate import load_model
from trainer.model import Llama, ModelConfig

LLAMA_3_1_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "llama-2": {"num_key_value_heads": 4},
    "grouped-query": {},
    "llama-3.1": {"rope_parameters": LLAMA_3_1_ROPE},
    "llama-3.2": {"rope_parameters": LLAMA_3_1_ROPE, "tie_word_embeddings": True},
    "wide-heads": {"head_dim": 16},
}
CPU = torch.device("cpu")


def reference(folder: Path, **changes: Any) -> transformers.LlamaForCausalLM:
    """transformers' own Llama with random weights, saved to `folder`."""
    torch.manual_seed(0)
    values = {key: value for key, value in (SHAPE | changes).items() if key != "model_type"}
    model: transformers.LlamaForCausalLM = transformers.LlamaForCausalLM(transformers.LlamaConfig(**values)).float()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_gradients_are_those_of_transformers_llama(tmp_path: Path, variant: str) -> None:
    theirs = reference(tmp_path, **VARIANTS[variant])
    ours = load_model(tmp_path, CPU)
    torch.manual_seed(1)
    tokens, labels = torch.randint(0, 97, (2, 40)), torch.randint(0, 97, (2, 40))
    expected = theirs(tokens).logits
    torch.testing.assert_close(ours(tokens), expected, rtol=0, atol=1e-6)
    (ours(tokens, labels) / labels.numel()).backward()
    torch.nn.functional.cross_entropy(expected.flatten(0, 1), labels.flatten()).backward()
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_bf16_logits_stay_near_those_of_transformers(tmp_path: Path) -> None:
    theirs = reference(tmp_path).bfloat16()
    ours = load_model(tmp_path, CPU).bfloat16()
    tokens = torch.randint(0, 97, (2, 40))
    torch.testing.assert_close(ours(tokens).float(), theirs(tokens).logits.float(), rtol=0.05, atol=0.05)


def test_a_document_in_a_packed_row_gets_the_logits_it_would_get_alone(tmp_path: Path) -> None:
    """Without its mask and its own positions, a document sees its neighbours: logits move by more than 1."""
    reference(tmp_path)
    model = load_model(tmp_path, CPU)
    lengths = [7, 20, 13]
    tokens = torch.randint(0, 97, (2, sum(lengths)))
    documents = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths)).expand(2, -1)
    packed = model(tokens, documents=documents)
    start = 0
    for length in lengths:
        alone = model(tokens[:, start : start + length])
        torch.testing.assert_close(packed[:, start : start + length], alone, rtol=0, atol=1e-5)
        start += length
    assert (model(tokens) - packed).abs().max() > 0.01


def test_parameters_are_counted_without_building_the_model(tmp_path: Path) -> None:
    for changes in VARIANTS.values():
        (tmp_path / "config.json").write_text(json.dumps(SHAPE | changes), encoding="utf-8")
        config = ModelConfig.load(tmp_path)
        with torch.device("meta"):
            assert config.parameters() == sum(parameter.numel() for parameter in Llama(config).parameters())


# https://huggingface.co/meta-llama: hidden, feed-forward, layers, heads, key-value heads, vocabulary, tied
KNOWN_SIZES = {
    "llama2-7b": (4096, 11008, 32, 32, 32, 32000, False),
    "llama2-13b": (5120, 13824, 40, 40, 40, 32000, False),
    "llama2-70b": (8192, 28672, 80, 64, 8, 32000, False),
    "llama3-1-8b": (4096, 14336, 32, 32, 8, 128256, False),
    "llama3-1-70b": (8192, 28672, 80, 64, 8, 128256, False),
    "llama3-2-1b": (2048, 8192, 16, 32, 8, 128256, True),
}


@pytest.mark.parametrize("name", KNOWN_SIZES)
def test_the_jobs_that_ship_state_the_size_that_their_model_has(tmp_path: Path, name: str) -> None:
    from config.job import JobConfig
    from config.loader import JOBS_FOLDER

    hidden, feed_forward, layers, heads, kv_heads, vocabulary, tied = KNOWN_SIZES[name]
    shape = {
        "hidden_size": hidden,
        "intermediate_size": feed_forward,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
    }
    (tmp_path / "config.json").write_text(json.dumps(SHAPE | shape), encoding="utf-8")
    stated = JobConfig.load(JOBS_FOLDER / f"{name}.yaml").trainer.model_parameters
    assert ModelConfig.load(tmp_path).parameters() == stated


def test_flops_are_six_for_each_multiplying_parameter_and_causal_attention(shared: Shared) -> None:
    config = ModelConfig.load(shared.folder / "models" / "small")
    assert config.flops_per_token(16) == 6 * (PARAMETERS - 97 * 32) + 6 * 2 * 4 * 8 * 16


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model_type": "gpt2"}, "model_type must be llama, got 'gpt2'"),
        ({"attention_bias": True}, "attention_bias must be false, got true"),
        ({"hidden_act": "gelu"}, "hidden_act must be silu, got 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_type must be default or llama3, got 'yarn'"),
        ({"rms_norm_eps": ...}, "rms_norm_eps is missing"),
        ({"num_attention_heads": 0}, "num_attention_heads must be a whole number above 0, got 0"),
        ({"hidden_size": "32"}, "hidden_size must be a whole number above 0, got '32'"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 must be a multiple of num_key_value_heads 3"),
    ],
)
def test_a_model_that_is_not_built_is_refused_by_name(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    values = {key: value for key, value in (SHAPE | change).items() if value is not ...}
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        ModelConfig.load(tmp_path)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, "", "{", "[]"])
def test_a_missing_or_broken_config_is_one_sentence(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        ModelConfig.load(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/config.json: ")
