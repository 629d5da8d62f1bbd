"""Text to token files: `python -m trainer.tokenize --model DIR --data PATH --format text|jsonl --output FILE.bin`.

A token file is memory-mapped: a header of 40 bytes (magic, bytes a token, documents, tokens, largest id), the token
ids, and the place at which each document begins, closed by the number of tokens; all little-endian.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer.config import ConfigError, DataFormat

MAGIC = b"TOKENS01"
HEADER = struct.Struct("<8sQQQQ")
DOCUMENTS_AT_A_TIME = 256
CHARACTERS_AT_A_TIME = 16_000_000  # so that a batch of long documents fits memory with its tokens

TextFormat = Literal["text", "jsonl"]
SUFFIXES: dict[DataFormat, str] = {"text": ".txt", "jsonl": ".jsonl", "tokens": ".bin"}


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A memory-mapped token file."""

    path: Path
    tokens: NDArray[Any]  # [tokens] of uint16 or uint32
    starts: NDArray[np.uint64]  # [documents + 1], the last one is the number of tokens
    largest_id: int

    @classmethod
    def open(cls, path: Path) -> TokenFile:
        """Map the file at `path`.

        Raises:
            ConfigError: it is no token file, or a torn one.
        """
        wrong = f"{path}: must be a whole token file, got %s; make it with python -m trainer.tokenize"
        try:
            with path.open("rb") as file:
                header = file.read(HEADER.size)
        except OSError as error:
            raise ConfigError(wrong % error.strerror) from None
        if len(header) < HEADER.size or not header.startswith(MAGIC):
            raise ConfigError(wrong % "something else")
        _, item_bytes, documents, tokens, largest_id = HEADER.unpack(header)
        if item_bytes not in (2, 4) or path.stat().st_size != _starts_at(item_bytes, tokens) + 8 * (documents + 1):
            raise ConfigError(wrong % f"{path.stat().st_size} bytes")
        return cls(
            path,
            np.memmap(path, dtype=f"<u{item_bytes}", mode="r", offset=HEADER.size, shape=(tokens,)),
            np.memmap(path, dtype="<u8", mode="r", offset=_starts_at(item_bytes, tokens), shape=(documents + 1,)),
            largest_id,
        )


def _starts_at(item_bytes: int, tokens: int) -> int:
    return HEADER.size + -(-item_bytes * tokens // 8) * 8


def load_tokenizer(model: Path) -> tuple[Tokenizer, int]:
    """The tokenizer of a Hugging Face folder, and the id that ends a document.

    Raises:
        ConfigError: tokenizer.json or config.json is missing or unreadable.
    """
    path = model / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001, the library raises bare Exception
        raise ConfigError(
            f"{path}: must be a tokenizer.json, got something unreadable ({error}); copy it from the model"
        ) from None
    try:
        end = json.loads((model / "config.json").read_text(encoding="utf-8"))["eos_token_id"]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{model / 'config.json'}: must give eos_token_id ({error!r}); copy it from the model"
        ) from None
    return tokenizer, int(end[0] if isinstance(end, list) else end)


def documents(data: Path, data_format: TextFormat) -> Iterator[str]:
    """Every document of a folder or file, in the order of file names.

    Raises:
        ConfigError: nothing there, or a file that is empty, or not text or JSON lines with a `text`.
    """
    for path in data_files(data, SUFFIXES[data_format]):
        is_empty = True
        try:
            for text in _documents_of(path, data_format):
                if "\0" in text:
                    raise ConfigError(f"{path}: must be text, got binary data; remove the file or convert it")
                is_empty = is_empty and not text.strip()
                yield text
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: must be UTF-8 text, got binary data; remove the file or convert it") from None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}; make it readable or remove it") from None
        if is_empty:
            raise ConfigError(f"{path}: must hold text, got none; fill the file or remove it")


def _documents_of(path: Path, data_format: TextFormat) -> Iterator[str]:
    if data_format == "text":
        yield path.read_text(encoding="utf-8")
        return
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _text_of(line, f"{path}: line {number}")


def _text_of(line: str, where: str) -> str:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: must be a JSON object ({error}); mend or remove the line") from None
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise ConfigError(
            f'{where}: must be a JSON object with text in "text", got {line.strip()[:60]!r}; mend the line'
        )
    return text


def data_files(data: Path, suffix: str) -> list[Path]:
    """The file itself, or every file of a folder and its subfolders that ends so.

    Raises:
        ConfigError: there is none.
    """
    if data.is_file():
        return [data]
    if not data.is_dir():
        raise ConfigError(f"{data}: no such file or folder; put the data there")
    found = sorted(path for path in data.rglob(f"*{suffix}") if path.is_file())
    if not found:
        raise ConfigError(f"{data}: has no *{suffix} file; put the data there, or correct data_format")
    return found


def write_token_file(path: Path, tokenizer: Tokenizer, end_id: int, texts: Iterator[str]) -> None:
    """Tokenize `texts` into a token file, each document closed by `end_id`. The file appears whole or not at all.

    Raises:
        ConfigError: the texts hold nothing, or raise it themselves.
    """
    partial = path.with_name(f"{path.name}.partial")
    made = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with partial.open("wb") as file:
            if not _write_tokens(file, tokenizer, end_id, texts):
                raise ConfigError(
                    f"{path}: would hold not one token of the data; add text, or use a tokenizer of its language"
                )
            file.flush()
            os.fsync(file.fileno())
    except ConfigError:
        partial.unlink()
        with suppress(OSError):  # another run may have put something there meanwhile
            for folder in made:
                folder.rmdir()
        raise
    partial.rename(path)


def _write_tokens(file: BinaryIO, tokenizer: Tokenizer, end_id: int, texts: Iterator[str]) -> int:
    """Write the whole file, and return the number of tokens in it."""
    item_type = np.dtype("<u2" if tokenizer.get_vocab_size() <= 2**16 else "<u4")
    starts, total, largest = [0], 0, 0
    file.write(bytes(HEADER.size))
    for batch in _batches(texts):
        for encoded in tokenizer.encode_batch(batch):
            if not encoded.ids:
                continue
            ids = encoded.ids if encoded.ids[-1] == end_id else [*encoded.ids, end_id]
            file.write(np.asarray(ids, dtype=item_type).tobytes())
            total += len(ids)
            largest = max(largest, *ids)
            starts.append(total)
    file.write(bytes(_starts_at(item_type.itemsize, total) - file.tell()))
    file.write(np.asarray(starts, dtype="<u8").tobytes())
    file.seek(0)
    file.write(HEADER.pack(MAGIC, item_type.itemsize, len(starts) - 1, total, largest))
    return total


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if len(batch) == DOCUMENTS_AT_A_TIME or characters >= CHARACTERS_AT_A_TIME:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def main() -> int:
    """Entry of `python -m trainer.tokenize`."""
    parser = argparse.ArgumentParser(prog="python -m trainer.tokenize", description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", type=Path, required=True, help="folder with tokenizer.json and config.json")
    parser.add_argument("--data", type=Path, required=True, help="folder or file with the text")
    parser.add_argument("--format", choices=["text", "jsonl"], required=True, help="format of the data")
    parser.add_argument("--output", type=Path, required=True, help="token file to write, *.bin")
    arguments = parser.parse_args()
    try:
        if arguments.output.suffix != ".bin":
            raise ConfigError(
                f"--output: must end in .bin, by which the trainer finds it, got {arguments.output}; rename it"
            )
        tokenizer, end_id = load_tokenizer(arguments.model)
        write_token_file(arguments.output, tokenizer, end_id, documents(arguments.data, arguments.format))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    file = TokenFile.open(arguments.output)
    print(f"{arguments.output}: {len(file.tokens):,} tokens in {len(file.starts) - 1:,} documents")
    return 0


if __name__ == "__main__":
    sys.exit(main())
