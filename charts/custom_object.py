"""An object whose kind the typed classes do not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cdk8s
from constructs import Construct


def custom_object(scope: Construct, id_: str, manifest: Mapping[str, Any]) -> cdk8s.ApiObject:
    """Add the object that `manifest` spells out, with its name and namespace in its metadata."""
    metadata = manifest["metadata"]
    made = cdk8s.ApiObject(
        scope,
        id_,
        api_version=manifest["apiVersion"],
        kind=manifest["kind"],
        metadata=cdk8s.ApiObjectMetadata(**metadata),
    )
    for key in manifest.keys() - {"apiVersion", "kind", "metadata"}:
        made.add_json_patch(cdk8s.JsonPatch.add(f"/{key}", manifest[key]))
    return made
