import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from config.schemas import FOLDER, rendered


def test_the_schemas_for_editors_are_those_of_the_models() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert committed == rendered(), "the schemas are stale; run make schemas"


@pytest.mark.parametrize("path", sorted(FOLDER.parent.glob("*/*.yaml")), ids=lambda path: path.stem)
def test_an_editor_finds_nothing_wrong_with_a_shipped_file(path: Path) -> None:
    name = "job" if path.parent.name == "jobs" else "local" if path.stem == "local" else "platform"
    schema: dict[str, Any] = json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    values = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    wrong = [
        e.message
        for e in jsonschema.Draft202012Validator(schema).iter_errors(values)
        if e.validator == "additionalProperties"
    ]
    assert wrong == []
