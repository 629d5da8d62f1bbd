"""A folder goes into the bucket, whole, once, and only where the file system shows it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from operations import upload
from tests.operations.conftest import REGION, own_values
from trainer.config import ConfigError

BUCKET = "the-platforms-own"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a platform, its outputs and some text."""
    (tmp_path / "platform.yaml").write_text(yaml.safe_dump({**own_values(), "jobs": []}), encoding="utf-8")
    outputs = {"p5-capacity-block-storage": {"BucketName": BUCKET}}
    (tmp_path / "outputs.json").write_text(json.dumps(outputs), encoding="utf-8")
    (tmp_path / "text/part").mkdir(parents=True)
    (tmp_path / "text/a.txt").write_text("one", encoding="utf-8")
    (tmp_path / "text/part/b.txt").write_text("two and", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def s3(aws: Any) -> Any:
    client = aws.client("s3")
    client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    return client


def run(monkeypatch: pytest.MonkeyPatch, source: str = "text", target: str = "data/books") -> int:
    monkeypatch.setattr("sys.argv", ["upload", "--config", "platform.yaml", "--from", source, "--to", target])
    return upload.main()


def held(s3: Any) -> dict[str, bytes]:
    objects = s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])
    return {each["Key"]: s3.get_object(Bucket=BUCKET, Key=each["Key"])["Body"].read() for each in objects}


@pytest.mark.usefixtures("folder")
def test_every_file_lies_below_the_target_and_the_end_says_where_pods_find_it(
    s3: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch) == 0
    assert held(s3) == {"data/books/a.txt": b"one", "data/books/part/b.txt": b"two and"}
    said = capsys.readouterr().out
    assert "2 of 2 files go to s3://the-platforms-own/data/books" in said
    assert "(100 %)" in said
    assert "/fsx/data/books" in said


def test_a_second_time_only_what_changed_goes(
    s3: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch)
    assert run(monkeypatch) == 0
    assert "0 of 2 files" in capsys.readouterr().out
    (folder / "text/a.txt").write_text("one and more", encoding="utf-8")
    later = time.time() + 60
    (folder / "text/part/b.txt").write_text("TWO AND", encoding="utf-8")
    os.utime(folder / "text/part/b.txt", (later, later))
    (folder / "text/c.txt").write_text("new", encoding="utf-8")
    assert run(monkeypatch) == 0
    assert "3 of 3 files" in capsys.readouterr().out
    assert held(s3)["data/books/part/b.txt"] == b"TWO AND"


def test_what_is_only_in_the_bucket_stays(s3: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch)
    (folder / "text/a.txt").unlink()
    assert run(monkeypatch) == 0
    assert "data/books/a.txt" in held(s3)


@pytest.mark.usefixtures("folder", "aws")
@pytest.mark.parametrize(
    "target", ["", "data", "data/", "runs/llama", "books", "data/../runs", "/data/books", "data/a b", "data/.x"]
)
def test_only_what_the_file_system_imports_is_a_target(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    assert run(monkeypatch, target=target) == 2
    assert capsys.readouterr().err.startswith("TO: must be data/NAME or models/NAME")


@pytest.mark.usefixtures("folder", "aws")
@pytest.mark.parametrize("source", ["", "not-there", "platform.yaml", "empty"])
def test_what_is_no_folder_with_files_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: str, folder: Path
) -> None:
    (folder / "empty").mkdir()
    assert run(monkeypatch, source=source) == 2
    error = capsys.readouterr().err
    assert error.startswith("FROM: ")
    assert error.count("\n") == 1


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize("content", ["", "[]", "{}", '{"other-storage": {"BucketName": "b"}}'])
def test_outputs_of_another_platform_name_no_bucket(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path, content: str
) -> None:
    (folder / "outputs.json").write_text(content, encoding="utf-8")
    assert run(monkeypatch) == 2
    assert "must name the bucket of p5-capacity-block, and does not; run make outputs" in capsys.readouterr().err


@pytest.mark.usefixtures("folder", "aws")
def test_a_bucket_that_is_gone_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch) == 2
    error = capsys.readouterr().err
    assert "NoSuchBucket" in error
    assert error.count("\n") == 1


def test_a_file_that_goes_away_meanwhile_is_one_sentence(
    s3: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    files = upload.local_files("text", "data/books")
    (folder / "text/a.txt").unlink()
    monkeypatch.setattr(upload, "local_files", lambda _source, _target: files)
    assert run(monkeypatch) == 2
    assert capsys.readouterr().err == "FROM: cannot read text/a.txt (No such file or directory); make it readable\n"
    assert "data/books/a.txt" not in held(s3)


@pytest.mark.parametrize(("name", "expected"), [("a" * 1100, "S3 takes 1024"), ("\udcff", "is not UTF-8")])
def test_names_that_s3_cannot_hold_are_refused(name: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        upload._check_key(f"data/x/{name}")
