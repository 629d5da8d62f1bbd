from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.conftest import Shared
from trainer.config import ConfigError
from trainer.data import Rows, open_rows
from trainer.loss import IGNORED_LABEL
from trainer.tokenize import TokenFile, load_tokenizer, write_token_file


def opened(shared: Shared, **changes: Any) -> Rows:
    arguments: dict[str, Any] = {
        "model": shared.folder / "models" / "small",
        "data": shared.folder / "data" / "train",
        "data_format": "text",
        "cache": shared.folder / "cache",
        "sequence_length": 16,
        "vocab_size": 97,
        "once": lambda work: work(),
    }
    return open_rows(**arguments | changes)


def test_rows_cover_the_tokens_in_order_and_labels_are_the_next_token(shared: Shared) -> None:
    rows = opened(shared)
    tokens = torch.from_numpy(rows.files[0].tokens[: 16 * len(rows) + 1].astype("int64"))
    batch = rows.batch(list(range(len(rows))))
    assert torch.equal(batch.tokens.flatten(), tokens[:-1])
    predicted = batch.labels.flatten()
    kept = predicted != IGNORED_LABEL
    assert torch.equal(predicted[kept], tokens[1:][kept])


def test_no_document_is_asked_to_foretell_the_next_one(shared: Shared) -> None:
    tokenizer, end = load_tokenizer(shared.folder / "models" / "small")
    path = shared.folder / "t.bin"
    write_token_file(path, tokenizer, end, iter(["aba aca"] * 20))
    rows = Rows([TokenFile.open(path)], 16)
    batch = rows.batch([0, 1])
    assert batch.documents is not None
    last_of_document = batch.tokens == end
    assert bool((batch.labels[last_of_document] == IGNORED_LABEL).all())
    assert bool((batch.labels[~last_of_document][:-1] != IGNORED_LABEL).all())
    changes = batch.documents[:, 1:] != batch.documents[:, :-1]
    assert torch.equal(changes, last_of_document[:, :-1])


def test_rows_run_through_several_files(shared: Shared) -> None:
    tokenizer, end = load_tokenizer(shared.folder / "models" / "small")
    for name in ("a", "b"):
        text = " ".join([f"{name}{letter}{name}" for letter in "abcdefgh"] * 10)
        write_token_file(shared.folder / "tokens" / f"{name}.bin", tokenizer, end, iter([text]))
    rows = opened(shared, data=shared.folder / "tokens", data_format="tokens")
    first, second = rows.files
    assert len(rows) == (len(first.tokens) - 1) // 16 + (len(second.tokens) - 1) // 16
    batch = rows.batch([len(rows) - 1])
    start = ((len(second.tokens) - 1) // 16 - 1) * 16
    assert batch.tokens[0].tolist() == second.tokens[start : start + 16].tolist()


def test_text_is_tokenized_once_and_again_when_it_changes(shared: Shared) -> None:
    opened(shared)
    made = list((shared.folder / "cache").iterdir())
    opened(shared)
    assert list((shared.folder / "cache").iterdir()) == made
    (shared.folder / "data" / "train" / "new.txt").write_text("aba " * 50, encoding="utf-8")
    opened(shared)
    assert len(list((shared.folder / "cache").iterdir())) == 2


def test_a_row_of_which_nothing_counts_has_no_labels(shared: Shared) -> None:
    batch = opened(shared).batch([None, 0])
    assert bool((batch.labels[0] == IGNORED_LABEL).all())
    assert bool((batch.labels[1] != IGNORED_LABEL).any())


def test_data_is_known_again_by_its_tokens_and_not_by_its_place_or_age(shared: Shared) -> None:
    before = opened(shared).digest()
    assert opened(shared, cache=shared.folder / "elsewhere").digest() == before
    assert opened(shared, sequence_length=8).digest() != before
    document = shared.folder / "data" / "train" / "1.txt"
    text = document.read_text(encoding="utf-8")
    document.write_text(text, encoding="utf-8")
    assert opened(shared).digest() == before
    document.write_text(text.replace(text[:3], text[4:7], 1), encoding="utf-8")
    assert opened(shared).digest() != before


def test_documents_stay_on_the_host_which_cuts_attention_by_them(shared: Shared) -> None:
    batch = opened(shared).batch([0, 1, 2, 3, 4, 5, 6, 7])
    moved = batch.to(torch.device("meta"))
    assert moved.tokens.device.type == moved.labels.device.type == "meta"
    assert moved.documents is batch.documents
    assert batch.label_count() == sum(int(label) != IGNORED_LABEL for label in batch.labels.flatten())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sequence_length": 100_000}, "must hold more than sequence_length 100000 tokens, got"),
        ({"vocab_size": 5}, "token ids must be below vocab_size 5"),
        ({"data": Path("/none")}, "/none: no such file or folder"),
        ({"data_format": "jsonl"}, r"has no \*.jsonl file"),
    ],
)
def test_data_that_does_not_fit_the_model_is_one_sentence(
    shared: Shared, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        opened(shared, **changes)
