from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.conftest import REPOSITORY, Shared
from trainer.config import ConfigError
from trainer.tokenize import TokenFile, documents, load_tokenizer, write_token_file


def test_documents_come_back_token_by_token_each_closed_by_the_end(shared: Shared) -> None:
    tokenizer, end = load_tokenizer(shared.folder / "models" / "small")
    texts = ["aba aca", "bcb", "zyz zxz zwz"]
    path = shared.folder / "out.bin"
    write_token_file(path, tokenizer, end, iter(texts))
    file = TokenFile.open(path)
    expected = [[*tokenizer.encode(text).ids, end] for text in texts]
    bounds = zip(file.starts[:-1].tolist(), file.starts[1:].tolist(), strict=True)
    assert [file.tokens[start:stop].tolist() for start, stop in bounds] == expected
    assert file.largest_id == max(max(ids) for ids in expected)
    assert file.tokens.dtype == np.uint16


def test_a_command_converts_a_folder(shared: Shared) -> None:
    out = shared.folder / "train.bin"
    arguments = ["--model", str(shared.folder / "models/small"), "--data", str(shared.folder / "data/train")]
    done = subprocess.run(
        [sys.executable, "-m", "trainer.tokenize", *arguments, "--format", "text", "--output", str(out)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "tokens in 4 documents" in done.stdout
    assert len(TokenFile.open(out).starts) == 5


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", b'{"text": "ok"}\nnot json\n', "a.jsonl: line 2: must be a JSON object"),
        ("a.jsonl", b'{"prompt": "x"}\n', 'a.jsonl: line 1: must be a JSON object with text in "text"'),
        ("a.jsonl", b'["x"]\n', "a.jsonl: line 1: must be a JSON object with text"),
        ("a.jsonl", b"\xff\xfe", "a.jsonl: must be UTF-8 text, got binary data"),
        ("a.jsonl", b'{"text": "a\\u0000b"}\n', "a.jsonl: must be text, got binary data"),
        ("a.jsonl", b"", "a.jsonl: must hold text, got none; fill the file or remove it"),
        ("a.csv", b"x", "has no *.jsonl file"),
    ],
)
def test_bad_lines_are_named_by_file_and_number(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        list(documents(tmp_path, "jsonl"))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x00\x01\x02", "b.txt: must be text, got binary data"),
        (b"\xff", "b.txt: must be UTF-8 text, got binary data"),
        (b" \n", "b.txt: must hold text, got none"),
    ],
)
def test_a_file_that_is_no_text_is_named_though_others_are(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "a.txt").write_text("fine", encoding="utf-8")
    (tmp_path / "b.txt").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        list(documents(tmp_path, "text"))
    assert expected in str(caught.value)


def test_a_mistake_in_the_middle_of_the_data_leaves_no_file(shared: Shared) -> None:
    tokenizer, end = load_tokenizer(shared.folder / "models" / "small")
    (shared.folder / "data" / "train" / "3.txt").write_bytes(b"\xff")
    path = shared.folder / "some" / "where" / "out.bin"
    with pytest.raises(ConfigError, match=r"3\.txt: must be UTF-8"):
        write_token_file(path, tokenizer, end, documents(shared.folder / "data" / "train", "text"))
    assert not (shared.folder / "some").exists()


def test_missing_data_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file or folder; put the data there"):
        list(documents(tmp_path / "none", "text"))


def test_data_without_any_text_leaves_no_file(shared: Shared) -> None:
    tokenizer, end = load_tokenizer(shared.folder / "models" / "small")
    path = shared.folder / "empty.bin"
    with pytest.raises(ConfigError, match="would hold not one token of the data"):
        write_token_file(path, tokenizer, end, iter(["", ""]))
    assert list(shared.folder.glob("empty*")) == []


@pytest.mark.parametrize("damage", ["truncated", "foreign", "empty"])
def test_a_torn_or_foreign_token_file_is_refused(shared: Shared, damage: str) -> None:
    tokenizer, end = load_tokenizer(shared.folder / "models" / "small")
    path = shared.folder / "out.bin"
    write_token_file(path, tokenizer, end, iter(["aba aca ada"]))
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[:-3], "foreign": b"x" * 200, "empty": b""}[damage])
    with pytest.raises(ConfigError, match="must be a whole token file"):
        TokenFile.open(path)


def test_a_folder_without_a_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json: must be a tokenizer\.json"):
        load_tokenizer(tmp_path)
