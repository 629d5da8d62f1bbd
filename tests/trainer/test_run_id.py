"""A pod learns the UID of its job from the API server, over TLS that it checks, with the token that it was given."""

from __future__ import annotations

import datetime
import http.server
import ipaddress
import json
import ssl
import threading
import urllib.error
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from trainer.run_id import owner_uid, write_owner_uid

JOB = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "llama", "uid": "job-uid", "controller": True}


def pod(*owners: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "llama-worker-0", "uid": "pod-uid", "ownerReferences": list(owners)}}


def test_the_uid_is_that_of_the_job_and_not_of_the_pod() -> None:
    assert owner_uid(pod(JOB)) == "job-uid"


def test_an_owner_that_does_not_control_the_pod_is_passed_over() -> None:
    other = {**JOB, "uid": "other-uid", "controller": False}
    kind = {**JOB, "kind": "Job", "uid": "other-uid"}
    assert owner_uid(pod(other, kind, JOB)) == "job-uid"


@pytest.mark.parametrize("owners", [[], [{**JOB, "controller": False}], [{**JOB, "kind": "ReplicaSet"}]])
def test_a_pod_without_a_job_is_an_error_that_names_it(owners: list[dict[str, Any]]) -> None:
    with pytest.raises(LookupError, match="llama-worker-0"):
        owner_uid(pod(*owners))
    with pytest.raises(LookupError):
        owner_uid({"metadata": {"name": "bare"}})


def certificate(folder: Path) -> Path:
    """A certificate for 127.0.0.1 that signs itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + made.public_bytes(serialization.Encoding.PEM)
    path = folder / "server.pem"
    path.write_bytes(text)
    (folder / "ca.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return path


@dataclass
class ApiServer:
    """What a pod finds of an API server: its address in the environment, and the folder of its own account."""

    account: Path
    answer: dict[str, Any]
    status: int = 200
    requests: list[tuple[str, str | None]] = field(default_factory=list)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    account = tmp_path / "account"
    account.mkdir()
    (account / "namespace").write_text("training", encoding="utf-8")
    (account / "token").write_text("the-token", encoding="utf-8")
    api = ApiServer(account=account, answer=pod(JOB))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            api.requests.append((self.path, self.headers["Authorization"]))
            self.send_response(api.status)
            self.end_headers()
            self.wfile.write(json.dumps(api.answer).encode())

        def log_message(self, *_: Any) -> None:
            return

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(account))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_address[1]))
    monkeypatch.setenv("HOSTNAME", "llama-worker-0")
    yield api
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_pod_asks_for_itself_alone_and_writes_its_jobs_uid(api: ApiServer, tmp_path: Path) -> None:
    write_owner_uid(tmp_path / "uid", api.account)
    assert (tmp_path / "uid").read_text(encoding="utf-8") == "job-uid"
    assert api.requests == [("/api/v1/namespaces/training/pods/llama-worker-0", "Bearer the-token")]


def test_the_token_goes_to_no_server_that_the_cluster_did_not_sign(api: ApiServer, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    certificate(other)
    (api.account / "ca.crt").write_bytes((other / "ca.crt").read_bytes())
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        write_owner_uid(tmp_path / "uid", api.account)
    assert api.requests == []


def test_without_the_right_to_look_there_is_no_id_and_no_file(api: ApiServer, tmp_path: Path) -> None:
    """A worker that met under half an id would wait alone for the others."""
    api.status, api.answer = 403, {"kind": "Status", "reason": "Forbidden"}
    with pytest.raises(urllib.error.HTTPError):
        write_owner_uid(tmp_path / "uid", api.account)
    assert not (tmp_path / "uid").exists()
