"""Images are told good from bad by what lies in them, here in folders that look like them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainer.check_image import _version_problems, problems

PACKAGES = Path("opt/venv/lib/python3.12/site-packages")


def touch(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    touch(tmp_path / "opt/amazon/efa/lib/libfabric.so.1.30.0")
    (tmp_path / "opt/amazon/efa/lib/libfabric.so.1").symlink_to("libfabric.so.1.30.0")
    touch(tmp_path / "opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net-ofi.so")
    touch(tmp_path / PACKAGES / "nvidia/nccl/lib/libnccl.so.2")
    touch(tmp_path / PACKAGES / "nvidia_nccl_cu13-2.29.7.dist-info/METADATA")
    touch(
        tmp_path / PACKAGES / "torch-2.13.0.dist-info/METADATA", 'Requires-Dist: nvidia-nccl-cu13==2.29.7; x == "y"\n'
    )
    return tmp_path


def test_an_image_with_one_of_each_is_good(image: Path) -> None:
    assert problems(image) == []


def test_links_to_one_library_are_one_library(image: Path) -> None:
    (image / "usr").mkdir()
    (image / "usr" / "libfabric.so.1").symlink_to(image / "opt/amazon/efa/lib/libfabric.so.1.30.0")
    assert problems(image) == []


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ("usr/lib/x86_64-linux-gnu/libfabric.so.1", "is a libfabric that is not EFA's"),
        ("usr/lib/x86_64-linux-gnu/libnccl.so.2", "is an NCCL that is not torch's"),
    ],
)
def test_a_second_library_is_found(image: Path, added: str, expected: str) -> None:
    touch(image / added)
    assert [added in problem and expected in problem for problem in problems(image)] == [True]


@pytest.mark.parametrize(
    ("removed", "expected"),
    [
        ("opt/amazon/efa/lib/libfabric.so.1", "libfabric.so.1 is nowhere"),
        ("opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net-ofi.so", "libnccl-net.so is nowhere"),
        (str(PACKAGES / "nvidia/nccl/lib/libnccl.so.2"), "libnccl.so.2 is nowhere"),
    ],
)
def test_a_missing_library_is_named(image: Path, removed: str, expected: str) -> None:
    (image / removed).unlink()
    assert [expected in problem for problem in problems(image)] == [True]


def test_an_nccl_of_another_version_than_torchs_is_refused(image: Path) -> None:
    info = image / PACKAGES / "nvidia_nccl_cu13-2.29.7.dist-info"
    info.rename(info.with_name("nvidia_nccl_cu13-2.20.5.dist-info"))
    assert ["torch was built with NCCL 2.29.7" in problem for problem in problems(image)] == [True]


@pytest.mark.skipif(torch.version.cuda is None, reason="torch without CUDA brings no NCCL")
def test_the_real_torch_of_this_machine_satisfies_the_rule() -> None:
    packages = Path(torch.__file__).parents[1]
    nccl = next(packages.glob("nvidia/**/libnccl.so.2"))
    assert _version_problems(nccl, Path("/")) == []
