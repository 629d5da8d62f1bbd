"""Every manifest is the one that was reviewed: `make snapshots` accepts a change, which the diff shows line by line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from tests.charts.synthesis import Manifests
from tests.synthesis import SHIPPED


class ManifestExtension(SingleFileSnapshotExtension):
    """The file as it is applied."""

    _write_mode = WriteMode.TEXT
    file_extension = "yaml"


@pytest.mark.parametrize("name", [*SHIPPED, "local"])
def test_the_manifests_are_those_that_were_reviewed(
    name: str, manifests_of: Callable[[str], Manifests], snapshot: SnapshotAssertion
) -> None:
    manifests = manifests_of(name)
    for chart, path in zip(manifests.charts, sorted(manifests.folder.iterdir()), strict=True):
        # The definition is the same for all, and too long to read nine times.
        if chart != "pytorchjob-crd" or name == "p5-capacity-block":
            text = path.read_text(encoding="utf-8")
            assert text == snapshot(name=chart, extension_class=ManifestExtension)
