"""JSON schemas of the platform and job files, for editors: `python -m config.schemas` writes them."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from config.job import JobConfig
from config.local import LocalConfig
from config.platform import PlatformConfig

FOLDER = Path(__file__).parent / "schemas"
SCHEMAS: dict[str, type[BaseModel]] = {
    "platform.schema.json": PlatformConfig,
    "local.schema.json": LocalConfig,
    "job.schema.json": JobConfig,
}


def rendered() -> dict[str, str]:
    """File name to the text of its schema."""
    return {
        name: json.dumps(
            {"$schema": "https://json-schema.org/draft/2020-12/schema"} | model.model_json_schema(), indent=2
        )
        + "\n"
        for name, model in SCHEMAS.items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in rendered().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
