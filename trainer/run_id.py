"""Writes the UID of the PyTorchJob that owns this pod to a file: `python -m trainer.run_id FILE`.

A manifest can be applied again and again under one name, while a rendezvous that has ended stays closed for its id. The
owner's UID is new with every submission, and no environment variable or label of the pod carries it. Runs in an init
container, whose service account may get pods of its namespace and nothing else. Imports the standard library alone.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import urllib.request
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def owner_uid(pod: dict[str, Any]) -> str:
    """The UID of the job that controls a pod, given the pod as the API server describes it.

    Raises:
        LookupError: no PyTorchJob controls it.
    """
    for owner in pod["metadata"].get("ownerReferences", []):
        if owner.get("controller") and owner["kind"] == "PyTorchJob":
            return str(owner["uid"])
    raise LookupError(f"no PyTorchJob controls pod {pod['metadata']['name']}")


def own_pod(account: Path) -> dict[str, Any]:
    """This pod, as the API server describes it. Its host name is its name."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    namespace = (account / "namespace").read_text(encoding="utf-8")
    request = urllib.request.Request(
        f"https://{host}:{port}/api/v1/namespaces/{namespace}/pods/{os.environ['HOSTNAME']}",
        headers={"Authorization": f"Bearer {(account / 'token').read_text(encoding='utf-8')}"},
    )
    trust = ssl.create_default_context(cafile=str(account / "ca.crt"))
    with urllib.request.urlopen(request, context=trust, timeout=30) as response:  # noqa: S310, the URL is https
        pod: dict[str, Any] = json.load(response)
    return pod


def write_owner_uid(file: Path, account: Path = ACCOUNT) -> None:
    """Write the UID of this pod's job to `file`, with the rights of the token in the folder `account`."""
    file.write_text(owner_uid(own_pod(account)), encoding="utf-8")


if __name__ == "__main__":
    write_owner_uid(Path(sys.argv[1]))
