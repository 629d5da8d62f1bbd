"""The Llama family in plain torch. Names and config.json are Hugging Face's, so checkpoints need no conversion.

Covers Llama 2 (with grouped-query attention), 3, 3.1 and 3.2 (scaled RoPE, tied embeddings). Attention with
Hugging Face's mathematics: https://github.com/huggingface/transformers/blob/main/src/transformers/models/llama/modeling_llama.py
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812, the name every reader knows
from torch.utils.checkpoint import checkpoint

from trainer.config import ConfigError
from trainer.loss import summed_token_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's stretch of RoPE's wavelengths, in the words of config.json."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a model, in the words of Hugging Face's config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    initializer_range: float

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The shape that `folder`/config.json describes.

        Raises:
            ConfigError: no such file, not JSON, another architecture, or an option of it that is not built.
        """
        path = folder / "config.json"
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such file; put Hugging Face's model folder there") from None
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{path}: must be Hugging Face's config.json, got something unreadable ({error}); copy it again"
            ) from None
        if not isinstance(values, dict) or values.get("model_type") != "llama":
            kind = values.get("model_type") if isinstance(values, dict) else values
            raise ConfigError(f"{path}: model_type must be llama, got {kind!r}; use a model of the Llama family")
        for option in ("attention_bias", "mlp_bias"):
            if values.get(option):
                raise ConfigError(f"{path}: {option} must be false, got true; use a model without biases")
        if values.get("hidden_act", "silu") != "silu":
            raise ConfigError(f"{path}: hidden_act must be silu, got {values['hidden_act']!r}; use a model with SwiGLU")
        _check_numbers(values, path)
        try:
            heads = values["num_attention_heads"]
            theta, scaling = _rope(values, path)
            return cls(
                vocab_size=values["vocab_size"],
                hidden_size=values["hidden_size"],
                intermediate_size=values["intermediate_size"],
                num_hidden_layers=values["num_hidden_layers"],
                num_attention_heads=heads,
                num_key_value_heads=values.get("num_key_value_heads") or heads,
                head_dim=values.get("head_dim") or values["hidden_size"] // heads,
                max_position_embeddings=values["max_position_embeddings"],
                rms_norm_eps=values["rms_norm_eps"],
                rope_theta=theta,
                rope_scaling=scaling,
                tie_word_embeddings=values.get("tie_word_embeddings", False),
                initializer_range=values.get("initializer_range", 0.02),
            )
        except KeyError as error:
            raise ConfigError(f"{path}: {error.args[0]} is missing; copy the model's config.json again") from None

    def parameters(self) -> int:
        """Parameters of the model, tied weights counted once."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_attention_heads + 2 * self.num_key_value_heads)
        feed_forward = 3 * self.hidden_size * self.intermediate_size
        layer = attention + feed_forward + 2 * self.hidden_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * layer + embeddings + self.hidden_size

    def flops_per_token(self, sequence_length: int) -> float:
        """Floating-point operations that training needs for one token: 6 N + 6 L h q T.

        N counts the parameters that multiply (all but an untied input embedding), L layers, h q the width of all
        heads, T the sequence length. Attention is counted as causal, half of the full square, as torchtitan does;
        recomputation is not counted, so this is for MFU, not for HFU.
        https://github.com/pytorch/torchtitan/blob/main/torchtitan/models/utils.py
        """
        lookup = 0 if self.tie_word_embeddings else self.vocab_size * self.hidden_size
        attention = 6 * self.num_hidden_layers * self.num_attention_heads * self.head_dim * sequence_length
        return 6.0 * (self.parameters() - lookup) + attention


SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


def _check_numbers(values: dict[str, Any], path: Path) -> None:
    for name in SIZES:
        size = values.get(name)
        if size is not None and (type(size) is not int or size < 1):
            raise ConfigError(
                f"{path}: {name} must be a whole number above 0, got {size!r}; copy the model's config.json again"
            )
    heads, shared = values.get("num_attention_heads", 1), values.get("num_key_value_heads") or 1
    if heads % shared:
        raise ConfigError(
            f"{path}: num_attention_heads {heads} must be a multiple of num_key_value_heads {shared}; "
            "copy the model's config.json again"
        )


def _rope(values: dict[str, Any], path: Path) -> tuple[float, RopeScaling | None]:
    """RoPE's base and scaling, from either of the two spellings that config.json has had."""
    parameters = values.get("rope_parameters") or values.get("rope_scaling") or {}
    theta = float(parameters.get("rope_theta") or values.get("rope_theta") or 10000.0)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ConfigError(f"{path}: rope_type must be default or llama3, got {kind!r}; use a model with one of those")
    return theta, RopeScaling(
        factor=parameters["factor"],
        low_freq_factor=parameters["low_freq_factor"],
        high_freq_factor=parameters["high_freq_factor"],
        original_max_position_embeddings=parameters["original_max_position_embeddings"],
    )


class Norm(nn.Module):
    """Root-mean-square norm, computed in fp32 whatever the precision of its input."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """[…, width] to the same."""
        normed = x.float()
        normed = normed * torch.rsqrt(normed.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return self.weight * normed.to(x.dtype)


class Attention(nn.Module):
    """Causal grouped-query attention; in a packed sequence, a token sees its own document alone."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], spans: list[list[int]] | None) -> Tensor:
        """[batch, tokens, width] to the same. `spans` are the lengths of each row's documents, if it is packed."""
        batch, tokens, _ = x.shape
        q = self.q_proj(x).view(batch, tokens, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, tokens, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, tokens, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = _rotated(q, *rope), _rotated(k, *rope)
        if spans is None:
            mixed = self._attend(q, k, v)
        else:
            # A document at a time costs the sum of squares of their lengths instead of the square of the sum.
            rows = [
                torch.cat(
                    [
                        self._attend(q_part, k_part, v_part)
                        for q_part, k_part, v_part in zip(
                            torch.split(q[row : row + 1], lengths, dim=2),
                            torch.split(k[row : row + 1], lengths, dim=2),
                            torch.split(v[row : row + 1], lengths, dim=2),
                            strict=True,
                        )
                    ],
                    dim=2,
                )
                for row, lengths in enumerate(spans)
            ]
            mixed = torch.cat(rows)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, -1))
        return out

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[…, width] to the same."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """One layer: attention and feed-forward, each behind a norm and beside a residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], spans: list[list[int]] | None) -> Tensor:
        """[batch, tokens, width] to the same."""
        x = x + self.self_attn(self.input_layernorm(x), rope, spans)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Decoder(nn.Module):
    """The layers between the embedding and the head. Its name in a checkpoint is `model`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.recomputes_layers = False

    def forward(self, tokens: Tensor, rope: tuple[Tensor, Tensor], spans: list[list[int]] | None) -> Tensor:
        """[batch, tokens] of ids to [batch, tokens, width]."""
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            if self.recomputes_layers and torch.is_grad_enabled():
                x = checkpoint(layer, x, rope, spans, use_reentrant=False)
            else:
                x = layer(x, rope, spans)
        out: Tensor = self.norm(x)
        return out


class Head(nn.Linear):
    """The projection to the vocabulary, which takes the loss too: a sharded weight is whole only while this runs."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, hidden: Tensor, labels: Tensor | None = None) -> Tensor:
        """[batch, tokens, width] to [batch, tokens, vocabulary] of logits, or to the summed loss of `labels`."""
        if labels is None:
            return super().forward(hidden)
        return summed_token_loss(hidden.flatten(0, 1), self.weight, labels.flatten())


class Llama(nn.Module):
    """A causal language model of the Llama family."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = Head(config)
        self.tie()

    def tie(self) -> None:
        """Share the embedding with the head, if the model does. Giving a module its memory parts the two."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens: Tensor, labels: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """Logits, or the summed loss where labels are given.

        Args:
            tokens: [batch, tokens] of ids.
            labels: [batch, tokens] of the ids to predict at each place, or -100.
            documents: [batch, tokens], an index that rises by one at each new document; None for one document a row.
                The host reads it, so on the host it makes no GPU wait.

        Returns:
            [batch, tokens, vocabulary] of logits, or a scalar in fp32: nats summed over labels.
        """
        spans = None if documents is None else document_spans(documents)
        rope = self._rope(tokens, documents)
        out: Tensor = self.lm_head(self.model(tokens, rope, spans), labels)
        return out

    def _rope(self, tokens: Tensor, documents: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cosines and sines for each token's place in its document, each [batch or 1, 1, tokens, head_dim]."""
        places = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        if documents is not None:
            first = torch.searchsorted(documents.contiguous(), documents.contiguous())
            places = places - first.to(places.device)
        # Computed, not kept: a buffer would be left uninitialised by to_empty and cast by mixed precision.
        angles = places.unsqueeze(-1).float() * rope_frequencies(self.config, tokens.device)
        angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
        return angles.cos(), angles.sin()


def document_spans(documents: Tensor) -> list[list[int]]:
    """The lengths of each row's documents, from [batch, tokens] of document indices."""
    return [torch.unique_consecutive(row, return_counts=True)[1].tolist() for row in documents]


def rope_frequencies(config: ModelConfig, device: torch.device) -> Tensor:
    """Radians a place for each pair of a head's dimensions, [head_dim / 2] in fp32."""
    pairs = torch.arange(0, config.head_dim, 2, dtype=torch.int64, device=device).float()
    frequencies = 1.0 / (config.rope_theta ** (pairs / config.head_dim))
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    # Long wavelengths are stretched by `factor`, short ones stay, and those between are blended:
    # https://github.com/meta-llama/llama-models/blob/main/models/llama3/model.py
    wavelengths = 2 * math.pi / frequencies
    context = scaling.original_max_position_embeddings
    blend = (context / wavelengths - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """[batch, heads, tokens, head_dim], each pair of dimensions turned by its angle in fp32. Halves are pairs."""
    first, second = x.chunk(2, dim=-1)
    return (x * cosines + torch.cat((-second, first), dim=-1) * sines).to(x.dtype)
