import subprocess
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "trainer"


def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run(["hadolint", str(FOLDER / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_build_ends_with_the_check_of_the_image_and_installs_only_what_is_locked() -> None:
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    assert "python -m trainer.check_image /" in text
    assert "pip install --no-cache-dir --require-hashes --requirement requirements.txt" in text
    assert ":latest" not in text


def test_both_library_folders_are_on_the_loaders_path() -> None:
    """With one of them missing, NCCL finds no plugin and talks TCP."""
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("ENV LD_LIBRARY_PATH="))
    assert "/opt/amazon/efa/lib" in line
    assert "/opt/amazon/ofi-nccl/lib" in line
