"""Reads the records that a run has written. Imports no torch, since whoever watches a run needs none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def read_records(path: Path) -> list[Record]:
    """Every whole record of a metrics file, none if there is no file. A line torn by a kill is left out."""
    records: list[Record] = []
    if not path.is_file():
        return records
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def is_torn(path: Path) -> bool:
    """Whether the last line of a file lacks its end, as a writer that was killed may leave it."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
