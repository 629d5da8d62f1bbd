"""Rows of tokens for the model: every token file of a run as one list of fixed sequences, packed with documents."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trainer.config import ConfigError, DataFormat
from trainer.loss import IGNORED_LABEL
from trainer.tokenize import SUFFIXES, TokenFile, data_files, documents, load_tokenizer, write_token_file


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences for one pass, each [sequences, tokens] of int64."""

    tokens: Tensor
    labels: Tensor  # the next token, or -100 at the end of a document
    documents: Tensor | None  # rises by one at each new document; None where every row lies in one document

    def to(self, device: torch.device) -> Batch:
        """The same on another device. Documents stay, since the host cuts attention by them and would have to wait."""
        return Batch(
            self.tokens.to(device, non_blocking=True), self.labels.to(device, non_blocking=True), self.documents
        )

    def label_count(self) -> int:
        """Tokens to predict."""
        return int((self.labels != IGNORED_LABEL).sum())


# Rows by whose tokens data is known again, evenly spread: reading all of it would take as long as an epoch.
SAMPLED_ROWS = 64


class Rows:
    """Fixed sequences cut from token files, by index. Nothing is read but the rows that are asked for."""

    def __init__(self, files: Sequence[TokenFile], sequence_length: int) -> None:
        self.files = files
        self.sequence_length = sequence_length
        # A row needs one token more than it is long: the label of its last place.
        self.ends = list(accumulate((len(file.tokens) - 1) // sequence_length for file in files))

    def __len__(self) -> int:
        return self.ends[-1]

    def digest(self) -> str:
        """A name for these rows, which another tokenizer, an added or a changed document would change."""
        digest = hashlib.blake2b(f"{self.sequence_length} {self.ends}".encode(), digest_size=8)
        for row in range(0, len(self), max(1, len(self) // SAMPLED_ROWS)):
            digest.update(self.batch([row]).tokens.numpy().tobytes())
        for file in self.files:
            digest.update(f"{len(file.tokens)} {len(file.starts)} {file.largest_id}".encode())
        return digest.hexdigest()

    def batch(self, indices: Sequence[int | None]) -> Batch:
        """The rows at `indices`; None stands for a row of which nothing counts."""
        tokens = torch.zeros(len(indices), self.sequence_length, dtype=torch.int64)
        labels = torch.full_like(tokens, IGNORED_LABEL)
        document = torch.zeros_like(tokens)
        for place, index in enumerate(indices):
            if index is None:
                continue
            number = int(np.searchsorted(self.ends, index, side="right"))
            file = self.files[number]
            first = (index - (self.ends[number - 1] if number else 0)) * self.sequence_length
            ids = torch.from_numpy(file.tokens[first : first + self.sequence_length + 1].astype(np.int64))
            where = np.arange(first, first + self.sequence_length + 1, dtype=np.uint64)
            owner = torch.from_numpy(np.searchsorted(file.starts, where, side="right"))
            tokens[place] = ids[:-1]
            # The last token of a document is followed by a stranger, which it is not asked to foretell.
            labels[place] = torch.where(owner[1:] == owner[:-1], ids[1:], IGNORED_LABEL)
            document[place] = owner[:-1] - owner[0]
        return Batch(tokens, labels, document if bool(document[:, -1].any()) else None)


def open_rows(
    *,
    model: Path,
    data: Path,
    data_format: DataFormat,
    cache: Path,
    sequence_length: int,
    vocab_size: int,
    once: Callable[[Callable[[], None]], None],
) -> Rows:
    """The rows of a data folder or file.

    Args:
        model: folder with tokenizer.json, and with config.json for the id that ends a document.
        data: the folder or file.
        data_format: what is in it.
        cache: folder for the tokens of text, which is tokenized once.
        sequence_length: tokens in a row.
        vocab_size: of the model.
        once: runs what one rank must do while the others wait for it.

    Raises:
        ConfigError: the data is missing, torn, not what `data_format` says, too short, or of another tokenizer.
    """
    if data_format == "tokens":
        paths = data_files(data, SUFFIXES["tokens"])
    else:
        path = cache / f"{_fingerprint(model, data, SUFFIXES[data_format])}.bin"

        def tokenize() -> None:
            if not path.is_file():
                print(f"tokenizing {data}", flush=True)
                tokenizer, end_id = load_tokenizer(model)
                write_token_file(path, tokenizer, end_id, documents(data, data_format))

        once(tokenize)
        paths = [path]
    files = [TokenFile.open(path) for path in paths]
    for file in files:
        if file.largest_id >= vocab_size:
            raise ConfigError(
                f"{file.path}: token ids must be below vocab_size {vocab_size} of {model}/config.json, "
                f"got {file.largest_id}; use the model's own tokenizer"
            )
    rows = Rows(files, sequence_length)
    if not len(rows):
        tokens = sum(len(file.tokens) for file in files)
        raise ConfigError(
            f"{data}: must hold more than sequence_length {sequence_length} tokens, got {tokens}; "
            "add data or shorten the sequence"
        )
    return rows


def _fingerprint(model: Path, data: Path, suffix: str) -> str:
    """A name for the tokens of these files by this tokenizer, which changes when either does."""
    path = model / "tokenizer.json"
    digest = hashlib.blake2b(path.read_bytes() if path.is_file() else b"", digest_size=8)
    for path in data_files(data, suffix):
        status = path.stat()
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()
