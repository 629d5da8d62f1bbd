"""`make synth` says what it wrote, and a mistake costs nothing that was written before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from operations import synth
from tests.operations.conftest import REPOSITORY
from trainer.config import ConfigError

BLOCK = REPOSITORY / "config/platforms/p5-capacity-block.yaml"
LOCAL = REPOSITORY / "config/platforms/local.yaml"


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.delenv("PLATFORM_CONFIG", raising=False)


def test_templates_and_manifests_are_those_of_the_platform_whatever_lay_there_before(tmp_path: Path) -> None:
    stacks, dist = tmp_path / "cdk.out", tmp_path / "dist"
    stacks.mkdir()
    (stacks / "p5-capacity-block-old-network.template.json").write_text("{}", encoding="utf-8")
    made = synth.synthesize(BLOCK, stacks_folder=stacks, charts_folder=dist, outputs=synth.SAMPLE_OUTPUTS)
    assert [path.name.removesuffix(".template.json") for path in made.templates] == [
        f"p5-capacity-block-{stack}" for stack in ("network", "cluster", "storage", "registry", "node-groups")
    ]
    assert made.manifests[-1].name == "0008-job-llama2-13b.k8s.yaml"
    assert made.used_sample_outputs


def test_a_path_with_a_space_is_a_path_and_not_two(tmp_path: Path) -> None:
    path = tmp_path / "my platform $(touch pwned).yaml"
    shutil.copyfile(LOCAL, path)
    made = synth.synthesize(path, stacks_folder=tmp_path / "s", charts_folder=tmp_path / "d")
    assert made.templates == ()
    assert made.manifests
    assert not (REPOSITORY / "pwned").exists()


def test_foreign_outputs_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs.json"
    outputs.write_text(json.dumps({"other-network": {"X": "y"}}), encoding="utf-8")
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "0000-good.k8s.yaml").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        synth.synthesize(BLOCK, stacks_folder=tmp_path / "s", charts_folder=tmp_path / "dist", outputs=outputs)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "dist" / "0000-good.k8s.yaml").exists()
    assert not (tmp_path / "s").exists()


def test_a_missing_command_line_tool_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="cdk8s: is not on PATH; run make setup"):
        synth.synthesize(LOCAL, stacks_folder=tmp_path / "s", charts_folder=tmp_path / "d")
