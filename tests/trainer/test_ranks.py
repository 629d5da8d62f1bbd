from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.trainer.conftest import Shared
from trainer.config import ConfigError
from trainer.ranks import Ranks, check_environment, check_locked_memory

PLACE = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"MASTER_PORT": None}, "environment: MASTER_PORT is not set; start the trainer by torchrun"),
        ({"RANK": "first"}, "environment: RANK must be a whole number, got 'first'"),
        ({"RANK": "2"}, "environment: RANK must be below WORLD_SIZE 2, got 2"),
    ],
)
def test_a_place_that_is_none_is_one_sentence(
    shared: Shared, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], expected: str
) -> None:
    for name, value in (PLACE | changes).items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        check_environment(shared.config())
    assert expected in str(caught.value)


def test_a_limit_on_locked_memory_is_refused_where_there_is_efa(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"now": 65536}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limits["now"], limits["now"]))
    check_locked_memory(tmp_path / "none")
    check_locked_memory(tmp_path)
    (tmp_path / "rdmap16s27").mkdir()
    with pytest.raises(ConfigError, match="memlock: must be unlimited on a node with EFA interfaces, got 65536 bytes"):
        check_locked_memory(tmp_path)
    limits["now"] = resource.RLIM_INFINITY
    check_locked_memory(tmp_path)


def test_a_failure_that_is_no_mistake_of_the_user_is_not_swallowed(alone: Ranks) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        alone.first_does(broken)


def test_what_one_rank_finds_wrong_ends_them_all_and_leaves_nothing(shared: Shared) -> None:
    (shared.folder / "data" / "train" / "5.txt").write_bytes(b"\xff\xfe\x00")
    ended = shared.run(2)
    assert [status for status, _, _ in ended] == [2, 2]
    said = ended[0][2].strip()
    assert said.endswith("5.txt: must be UTF-8 text, got binary data; remove the file or convert it")
    assert "\n" not in said
    assert ended[1][2] == ""
    assert not (shared.folder / "runs").exists()


def test_a_port_that_one_node_has_not_free_ends_them_all(shared: Shared) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        ended = shared.run(2, metrics_port=taken.getsockname()[1])
    assert [status for status, _, _ in ended] == [2, 2]
    assert "metrics_port: " in ended[0][2]
    assert ended[1][2] == ""
    assert not (shared.folder / "runs" / "test" / "metrics.jsonl").exists()
