"""Refuses an image that would train over TCP or not at all: `python -m trainer.check_image ROOT`, at the image's build.

One libfabric, EFA's own; the NCCL plugin; one NCCL, the one that torch was built with. A second copy of either is found
by the loader before the right one, and NCCL then talks TCP without a word. Imports the standard library alone.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

EFA_LIBRARIES = Path("opt/amazon/efa/lib")
SKIPPED = ("proc", "sys", "dev")


def problems(root: Path) -> list[str]:
    """What is wrong with the file system below `root`, a sentence each; nothing if it is right."""
    found: list[str] = []
    fabrics = libraries(root, "libfabric.so.1")
    if not fabrics:
        found.append("libfabric.so.1 is nowhere; run the EFA installer")
    found += [
        f"{path} is a libfabric that is not EFA's; remove the package that brought it"
        for path in fabrics
        if EFA_LIBRARIES not in path.relative_to(root).parents
    ]
    if not libraries(root, "libnccl-net*.so"):
        found.append("libnccl-net.so is nowhere; install the EFA installer's NCCL plugin")
    nccls = libraries(root, "libnccl.so.2")
    if not nccls:
        found.append("libnccl.so.2 is nowhere; install torch with its NCCL")
    found += [
        f"{path} is an NCCL that is not torch's; remove the package that brought it"
        for path in nccls
        if "site-packages" not in path.parts
    ]
    return found + [f"{path.parent.name}: {text}" for path in nccls for text in _version_problems(path, root)]


def _version_problems(nccl: Path, root: Path) -> list[str]:
    """Compares the installed NCCL with the one that torch's own metadata demands."""
    packages = [path for path in nccl.parents if path.name == "site-packages"]
    if not packages:
        return []
    installed = [path.name for path in packages[0].glob("nvidia_nccl_cu*.dist-info")]
    wanted = [
        match.group(1)
        for metadata in packages[0].glob("torch-*.dist-info/METADATA")
        for match in re.finditer(r"^Requires-Dist: nvidia-nccl-cu\d+==([\d.]+)", metadata.read_text("utf-8"), re.M)
    ]
    if not wanted:
        return [f"torch in {packages[0].relative_to(root)} names no NCCL; install a CUDA build of torch"]
    if not any(f"-{wanted[0]}." in name for name in installed):
        return [f"torch was built with NCCL {wanted[0]}, and installed is {', '.join(installed)}; install that version"]
    return []


def libraries(root: Path, pattern: str) -> list[Path]:
    """Every library of that name, each file once whatever links point to it."""
    real: dict[Path, Path] = {}
    for top in sorted(root.iterdir()):
        if top.name in SKIPPED or top.is_symlink() or not top.is_dir():
            continue
        for path in sorted(top.rglob(pattern)):
            real.setdefault(path.resolve(), path)
    return list(real.values())


def main() -> int:
    """Entry of `python -m trainer.check_image`."""
    found = problems(Path(sys.argv[1]))
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
