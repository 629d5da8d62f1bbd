"""What `python -m charts` writes and says, as a person, `make` and the cdk8s CLI start it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from charts.__main__ import main
from config.loader import CONFIG_VARIABLE
from config.names import SAMPLE_ANNOTATION
from tests.charts.synthesis import PLATFORMS_FOLDER, REPOSITORY, SAMPLE_OUTPUTS, Manifests, read_manifests

BLOCK = PLATFORMS_FOLDER / "p5-capacity-block.yaml"
LOCAL = PLATFORMS_FOLDER / "local.yaml"


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """The entry with these arguments, in a folder of its own."""
    for variable in (CONFIG_VARIABLE, "CDK8S_OUTDIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> int:
        monkeypatch.setattr("sys.argv", ["charts", *map(str, arguments)])
        return main()

    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_files_are_numbered_in_the_order_of_application_and_jobs_are_last(manifests: Manifests) -> None:
    files = [path.name for path in sorted(manifests.folder.iterdir())]
    assert [file[:4] for file in files] == [f"{number:04}" for number in range(len(files))]
    jobs = [f"-job-{job.name}.k8s.yaml" for job in manifests.platform.jobs]
    assert [file[4:] for file in files[-len(jobs) :]] == jobs
    assert not any("-job-" in file for file in files[: -len(jobs)])
    order = [re.sub(r"\d{4}-|\.k8s\.yaml", "", file) for file in files]
    assert order.index("namespaces") < order.index("pytorchjob-crd") < order.index("training-operator")
    assert max(map(order.index, ("etcd", "storage", "trainer-access"))) < len(files) - len(jobs)


def test_a_job_has_the_same_file_however_many_there_are(start: Callable[..., int], tmp_path: Path) -> None:
    """`make submit` and the README name it."""
    two = BLOCK.read_text(encoding="utf-8")
    one = two.replace("  - {job: llama2-13b, node_group: p5, nodes: 4}\n", "")
    assert one != two
    for name, text in (("one", one), ("two", two)):
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
        assert start("--config", f"{name}.yaml", "--outputs", SAMPLE_OUTPUTS, "--output-dir", name) == 0
    assert contents(tmp_path / "one").items() < contents(tmp_path / "two").items()


def test_two_runs_write_the_same_bytes(tmp_path: Path, block: Manifests) -> None:
    """A process of its own, with another seed of its hashes, so that nothing hangs on the order of a set."""
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    arguments = ["--config", str(BLOCK), "--outputs", str(SAMPLE_OUTPUTS), "--output-dir", str(tmp_path / "again")]
    subprocess.run([sys.executable, "-m", "charts", *arguments], check=True, cwd=REPOSITORY, env=environment)
    assert contents(tmp_path / "again") == contents(block.folder)


def test_the_cli_names_the_platform_and_the_folder_by_variables(
    start: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, manifests_of: Callable[[str], Manifests]
) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, str(LOCAL))
    monkeypatch.setenv("CDK8S_OUTDIR", "by-cli")
    assert start() == 0
    assert contents(tmp_path / "by-cli") == contents(manifests_of("local").folder)


def test_manifests_of_another_platform_do_not_stay_behind(start: Callable[..., int], tmp_path: Path) -> None:
    assert start("--config", BLOCK, "--outputs", SAMPLE_OUTPUTS) == 0
    (tmp_path / "dist" / "notes.txt").write_text("mine", encoding="utf-8")
    assert start("--config", LOCAL) == 0
    found = read_manifests(tmp_path / "dist")
    assert "device-plugins" not in found
    assert [name for name in found if name.startswith("job-")] == ["job-tiny"]
    assert (tmp_path / "dist" / "notes.txt").exists()


@pytest.mark.parametrize("deployed", [False, True])
def test_what_names_a_file_system_or_image_of_nobody_says_so(
    start: Callable[..., int], tmp_path: Path, deployed: bool
) -> None:
    """`make apply` refuses it by this annotation."""
    outputs = SAMPLE_OUTPUTS
    if deployed:
        outputs = tmp_path / "outputs.json"
        outputs.write_text(SAMPLE_OUTPUTS.read_text().replace('"sample":', '"p5-capacity-block-storage":'))
    assert start("--config", BLOCK, "--outputs", outputs) == 0
    annotated = {
        each["kind"]
        for objects in read_manifests(tmp_path / "dist").values()
        for each in objects
        if SAMPLE_ANNOTATION in each["metadata"].get("annotations", {})
    }
    assert annotated == (set() if deployed else {"PersistentVolume", "PyTorchJob"})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "no platform file was chosen"),
        (["--config", "none.yaml"], "none.yaml: no such file"),
        (["--config", str(BLOCK)], "outputs.json: no such file; run `npx cdk deploy --all -c config=PATH`"),
        (["--config", str(BLOCK), "--outputs", str(BLOCK)], "p5-capacity-block.yaml: must be what cdk deploy wrote"),
        (["--config", str(LOCAL), "--output-dir", "dist/0000-mine.k8s.yaml"], "--output-dir: "),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2_and_changes_nothing(
    start: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    expected: str,
) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "0000-mine.k8s.yaml").write_text("kept", encoding="utf-8")
    assert start(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert expected in err
    assert err.count("\n") == 1
    assert contents(tmp_path / "dist") == {"0000-mine.k8s.yaml": b"kept"}


def test_a_mistake_ends_the_process_that_the_cli_started_with_status_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "charts", "--config", "none.yaml", "--output-dir", tmp_path / "dist"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("none.yaml: no such file")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "dist").exists()
