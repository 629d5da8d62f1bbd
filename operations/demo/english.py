"""The demo's text, tokenizer and model folder, made from the manual that every Python carries."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 1024
BLOCK_CHARACTERS = 2000
HELD_OUT_EVERY = 10  # one block in ten

# Hugging Face's config.json of a Llama small enough for two CPU cores.
TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "torch_dtype": "float32",
    # About one over the root of the width. The usual 0.02 is for models thirty times as wide.
    "initializer_range": 0.06,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class English:
    """What was written, and how well guessing by frequency alone does on the held-out part."""

    training_tokens: int
    held_out_tokens: int
    unigram_loss: float  # nats a token


def write_english(shared_dir: Path, *, model: str, data: str, held_out: str) -> English:
    """Write the text and the model folder below `shared_dir`.

    Args:
        shared_dir: folder that the workers share.
        model: folder for config.json and tokenizer.json.
        data: folder for the training text.
        held_out: folder for the text that is never trained on.
    """
    training, held_out_text = split(manual())
    tokenizer = train_tokenizer(training)
    for folder, text in ((data, training), (held_out, held_out_text)):
        (shared_dir / folder).mkdir(parents=True)
        (shared_dir / folder / "manual.txt").write_text(text, encoding="utf-8")
    (shared_dir / model).mkdir(parents=True)
    (shared_dir / model / "config.json").write_text(json.dumps(TINY_LLAMA, indent=2), encoding="utf-8")
    tokenizer.save(str(shared_dir / model / "tokenizer.json"))
    training_ids, held_out_ids = tokenizer.encode(training).ids, tokenizer.encode(held_out_text).ids
    return English(
        training_tokens=len(training_ids),
        held_out_tokens=len(held_out_ids),
        unigram_loss=unigram_loss(training_ids, held_out_ids),
    )


def manual() -> list[str]:
    """The paragraphs of Python's manual, each once: topics quote one another, and repeats would leak."""
    paragraphs = (
        paragraph.strip("\n")
        for topic in sorted(topics.topics)
        for paragraph in re.split(r"\n\s*\n", topics.topics[topic])
    )
    return list(dict.fromkeys(paragraph for paragraph in paragraphs if paragraph.strip()))


def split(paragraphs: list[str]) -> tuple[str, str]:
    """Training text and held-out text, cut into blocks of about 2,000 characters of which every tenth is held out."""
    blocks: list[list[str]] = [[]]
    for paragraph in paragraphs:
        if sum(map(len, blocks[-1])) >= BLOCK_CHARACTERS:
            blocks.append([])
        blocks[-1].append(paragraph)
    texts = ["\n\n".join(block) for block in blocks]
    training = [text for index, text in enumerate(texts) if index % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]
    return "\n\n".join(training), "\n\n".join(texts[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY])


def train_tokenizer(text: str) -> Tokenizer:
    """A byte-level BPE of `text`, in the form of Llama 3's tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|end_of_text|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def unigram_loss(training: list[int], held_out: list[int]) -> float:
    """Nats a token of `held_out` when each is guessed by its count in `training` plus one."""
    counts = Counter(training)
    total = len(training) + VOCABULARY
    return -sum(math.log((counts[token] + 1) / total) for token in held_out) / len(held_out)
