"""Text from a finished run: `python -m trainer.generate --config FILE --prompt TEXT [--tokens N …]`, in one process."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

from trainer.config import ConfigError, TrainerConfig
from trainer.model import Llama, ModelConfig
from trainer.tokenize import load_tokenizer
from trainer.weights import load_weights


def load_model(folder: Path, device: torch.device) -> Llama:
    """The unsharded model in a Hugging Face folder, in fp32.

    Raises:
        ConfigError: the folder does not hold a whole model.
    """
    with torch.device("meta"):
        model = Llama(ModelConfig.load(folder))
    model.to_empty(device=device)
    model.tie()
    with torch.no_grad():
        load_weights(model, folder)
    return model.eval()


@torch.inference_mode()
def generate(
    model: Llama,
    tokens: list[int],
    *,
    new_tokens: int,
    temperature: float,
    top_k: int,
    seed: int,
    end_id: int | None = None,
) -> list[int]:
    """Continue `tokens`, one token at a time.

    Args:
        model: an unsharded model.
        tokens: ids to begin with, at least one.
        new_tokens: ids to add at most.
        temperature: divides the logits; 0 takes the likeliest token always.
        top_k: how many of the likeliest tokens are drawn from.
        seed: of the draws.
        end_id: an id at which to stop.

    Returns:
        The ids that were added.
    """
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    ids = list(tokens)
    for _ in range(new_tokens):
        context = torch.tensor([ids[-model.config.max_position_embeddings :]], device=device)
        logits = model(context)[0, -1].float()
        best, candidates = logits.topk(min(top_k, logits.numel()))
        if temperature == 0:
            drawn = 0
        else:
            drawn = int(torch.multinomial((best / temperature).softmax(0), 1, generator=generator))
        ids.append(int(candidates[drawn]))
        if ids[-1] == end_id:
            break
    return ids[len(tokens) :]


def main() -> int:
    """Entry of `python -m trainer.generate`."""
    parser = argparse.ArgumentParser(prog="python -m trainer.generate", description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", type=Path, required=True, help="the run's YAML file")
    parser.add_argument("--prompt", required=True, help="text to continue")
    parser.add_argument("--tokens", type=int, default=200, help="tokens to add")
    parser.add_argument("--temperature", type=float, default=0.7, help="0 takes the likeliest token always")
    parser.add_argument("--top-k", type=int, default=40, help="likeliest tokens to draw from")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws")
    arguments = parser.parse_args()
    try:
        config = TrainerConfig.load(arguments.config)
        folder = Path(config.shared_dir) / "runs" / config.run / "export"
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder; run {config.run} exports its model when it finishes")
        tokenizer, end_id = load_tokenizer(folder)
        tokens = _prompt_ids(tokenizer, arguments.prompt)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    added = generate(
        load_model(folder, torch.device(config.device)),
        tokens,
        new_tokens=arguments.tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        seed=arguments.seed,
        end_id=end_id,
    )
    print(arguments.prompt + tokenizer.decode(added))
    return 0


def _prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    ids: list[int] = tokenizer.encode(prompt).ids
    if not ids:
        raise ConfigError("--prompt: must hold text, got nothing; write some words")
    return ids


if __name__ == "__main__":
    sys.exit(main())
