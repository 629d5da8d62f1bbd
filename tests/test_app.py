"""What `python app.py` does and says, as a person or the CDK CLI starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from config.loader import CONFIG_VARIABLE
from tests.synthesis import PLATFORMS_FOLDER, STACKS, Synthesized

REPOSITORY = PLATFORMS_FOLDER.parent.parent
BLOCK = PLATFORMS_FOLDER / "p5-capacity-block.yaml"


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """app.py's entry with these arguments, writing below the test's folder."""
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    monkeypatch.setenv("CDK_OUTDIR", str(tmp_path / "out"))

    def run(*arguments: str) -> int:
        from app import main

        monkeypatch.setattr("sys.argv", ["app.py", *arguments])
        return main()

    return run


def test_the_platform_comes_by_flag_or_by_the_context_of_the_cli(start: Callable[..., int], tmp_path: Path) -> None:
    assert start("--config", str(BLOCK)) == 0
    # The CDK's Node process takes the context from the environment it was started in, so it needs a new one.
    by_cli = tmp_path / "by-cli"
    context = {"CDK_CONTEXT_JSON": json.dumps({"config": str(BLOCK)}), "CDK_OUTDIR": str(by_cli)}
    subprocess.run([sys.executable, "app.py"], check=True, cwd=REPOSITORY, env={**os.environ, **context})
    templates, of_cli = (
        {path.name: path.read_text() for path in folder.glob("*.template.json")}
        for folder in (tmp_path / "out", by_cli)
    )
    assert len(templates) == len(STACKS)
    assert templates == of_cli


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "no platform file was chosen"),
        (["--config", "none.yaml"], "none.yaml: no such file"),
        (
            ["--config", str(PLATFORMS_FOLDER / "local.yaml")],
            "local is this machine and has no stacks; run `make synth`",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2_and_writes_nothing(
    start: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert start(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert expected in err
    assert err.count("\n") == 1
    assert not list((tmp_path / "out").rglob("*.json"))


def test_templates_that_break_a_rule_end_with_status_1_and_cannot_be_deployed(
    start: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.violations", lambda _: ["p5-node-groups/p5: is wrong", "p5-storage/fs: is wrong too"])
    assert start("--config", str(BLOCK)) == 1
    assert capsys.readouterr().err == "p5-node-groups/p5: is wrong\np5-storage/fs: is wrong too\n"
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_platform_has_five_stacks_named_after_it(platform: Synthesized) -> None:
    assert set(platform.templates) == set(STACKS)


def test_the_nodes_go_before_the_file_system_that_they_mount(platform: Synthesized) -> None:
    """A destroy that deleted the file system first left mounts hanging on nodes that then could not be drained."""
    manifest = json.loads((platform.folder / "manifest.json").read_text())["artifacts"]
    name = platform.config.name
    assert f"{name}-storage" in manifest[f"{name}-node-groups"]["dependencies"]


def test_a_synthesis_leaves_nothing_to_look_up(platform: Synthesized) -> None:
    """A look-up needs credentials, and without them takes a minute to fail."""
    manifest = json.loads((platform.folder / "manifest.json").read_text())
    assert not manifest.get("missing")


def test_synthesis_is_deterministic(platform: Synthesized, synthesize: Callable[..., Synthesized]) -> None:
    assert synthesize(platform.config).templates == platform.templates
