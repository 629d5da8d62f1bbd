"""Manifests reach the right cluster, in the right order, and nothing of a sample ever does."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

from config.loader import load_config
from config.platform import ExistingClusterConfig, PlatformConfig
from operations.kubectl import check_cluster
from tests.operations.conftest import REPOSITORY, Kubectl, run
from trainer.config import ConfigError

CLOUD = str(REPOSITORY / "config/platforms/p5-capacity-block.yaml")
LOCAL = str(REPOSITORY / "config/platforms/local.yaml")


@cache
def manifests(config: str, deployed: bool) -> dict[str, str]:
    """File name to text, of manifests made from a deployment's outputs or from the sample."""
    sample = json.loads((REPOSITORY / "charts/sample_outputs.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        outputs = Path(folder) / "outputs.json"
        outputs.write_text(json.dumps({"p5-capacity-block-storage": sample["sample"]} if deployed else sample))
        arguments = ["--config", config, "--outputs", str(outputs), "--output-dir", f"{folder}/dist"]
        subprocess.run([sys.executable, "-m", "charts", *arguments], cwd=REPOSITORY, check=True)
        return {path.name: path.read_text() for path in Path(folder, "dist").iterdir()}


def synthesize(folder: Path, config: str, *, deployed: bool) -> None:
    (folder / "dist").mkdir()
    for name, text in manifests(config, deployed).items():
        (folder / "dist" / name).write_text(text)


def test_files_are_applied_by_number_and_each_is_waited_for(tmp_path: Path, kubectl: Kubectl) -> None:
    synthesize(tmp_path, CLOUD, deployed=True)
    done = run("apply", "--config", CLOUD, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    calls = [" ".join(call) for call in kubectl.calls()]
    applied = [call for call in calls if call.startswith("apply")]
    assert applied == sorted(applied)
    assert all("--server-side" in call for call in applied)
    assert not any("-job-" in call for call in applied)
    crd = calls.index("wait --for=condition=Established --timeout=60s crd/pytorchjobs.kubeflow.org")
    operator = calls.index("rollout status --timeout=300s --namespace=kubeflow deployment/training-operator")
    etcd = calls.index("rollout status --timeout=300s --namespace=training deployment/etcd")
    assert calls.index(applied[1]) < crd < calls.index(applied[2]) < operator < calls.index(applied[3]) < etcd


def test_a_job_is_applied_alone(tmp_path: Path, kubectl: Kubectl) -> None:
    synthesize(tmp_path, CLOUD, deployed=True)
    done = run("submit", "--config", CLOUD, "--job", "llama2-7b", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "kubectl logs --namespace=training --follow llama2-7b-worker-0" in done.stdout
    applied = [call for call in kubectl.calls() if call[0] == "apply"]
    assert [Path(call[-1].removeprefix("--filename=")).name for call in applied] == ["0007-job-llama2-7b.k8s.yaml"]


def test_a_webhook_that_is_not_up_yet_is_asked_again(tmp_path: Path, kubectl: Kubectl) -> None:
    synthesize(tmp_path, CLOUD, deployed=True)
    kubectl.refuses("Internal error: failed calling webhook x")
    assert run("submit", "--config", CLOUD, "--job", "llama2-7b", cwd=tmp_path).returncode == 0
    assert len([call for call in kubectl.calls() if call[0] == "apply"]) == 2


def test_another_refusal_is_passed_on_at_once(tmp_path: Path, kubectl: Kubectl) -> None:
    synthesize(tmp_path, CLOUD, deployed=True)
    kubectl.refuses("denied the request: bad job")
    done = run("submit", "--config", CLOUD, "--job", "llama2-7b", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "kubectl apply failed: denied the request: bad job\n")


@pytest.mark.parametrize("command", [["apply"], ["submit", "--job", "llama2-7b"]])
def test_samples_are_never_applied(tmp_path: Path, kubectl: Kubectl, command: list[str]) -> None:
    synthesize(tmp_path, CLOUD, deployed=False)
    done = run(command[0], "--config", CLOUD, *command[1:], cwd=tmp_path)
    assert done.returncode == 2
    assert "was made from sample outputs; deploy first" in done.stderr
    assert kubectl.calls() == []


def test_manifests_of_another_platform_are_refused(tmp_path: Path, kubectl: Kubectl) -> None:
    synthesize(tmp_path, LOCAL, deployed=True)
    done = run("apply", "--config", CLOUD, cwd=tmp_path)
    assert done.returncode == 2
    assert (
        "must hold the manifests of p5-capacity-block, got those of volume local-shared; run make synth" in done.stderr
    )
    assert kubectl.calls() == []


def test_a_platform_in_an_existing_cluster_goes_to_that_one(kubectl: Kubectl) -> None:
    """Its own name names no cluster there."""
    config = load_config(Path(CLOUD)).config
    assert isinstance(config, PlatformConfig)
    existing = ExistingClusterConfig(name="theirs", security_group_id="sg-0123456789abcdef0")
    config = config.model_copy(update={"cluster": config.cluster.model_copy(update={"existing": existing})})
    kubectl.points_at("arn:aws:eks:us-east-2:111122223333:cluster/theirs")
    check_cluster(config)
    kubectl.points_at("arn:aws:eks:us-east-2:111122223333:cluster/p5-capacity-block")
    with pytest.raises(ConfigError, match=r"must point at cluster theirs, got .*--name theirs --region us-east-2"):
        check_cluster(config)


def test_another_cluster_is_never_touched(tmp_path: Path, kubectl: Kubectl) -> None:
    synthesize(tmp_path, CLOUD, deployed=True)
    kubectl.points_at("arn:aws:eks:us-east-2:111122223333:cluster/production")
    done = run("apply", "--config", CLOUD, cwd=tmp_path)
    assert done.returncode == 2
    assert "aws eks update-kubeconfig --name p5-capacity-block --region us-east-2" in done.stderr
    assert [call[0] for call in kubectl.calls()] == ["config"]


def test_an_unknown_job_and_a_missing_kubectl_are_one_sentence(
    tmp_path: Path, kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthesize(tmp_path, CLOUD, deployed=True)
    done = run("submit", "--config", CLOUD, "--job", "llama9", cwd=tmp_path)
    assert done.stderr.startswith("--job: must be one of llama2-7b, llama2-13b, got llama9")
    (kubectl.folder / "kubectl").unlink()
    monkeypatch.setenv("PATH", str(kubectl.folder))
    done = run("apply", "--config", CLOUD, cwd=tmp_path)
    assert (done.returncode, done.stderr[:40]) == (2, "kubectl: is not on PATH; install it: htt")


def test_a_job_that_is_there_is_not_taken_for_submitted(tmp_path: Path, kubectl: Kubectl) -> None:
    """The operator does nothing for a finished job that is applied again, and kubectl calls that success."""
    synthesize(tmp_path, CLOUD, deployed=True)
    kubectl.holds("llama2-7b")
    done = run("submit", "--config", CLOUD, "--job", "llama2-7b", cwd=tmp_path)
    assert done.returncode == 2
    assert "remove it first with `kubectl delete --filename=dist/0007-job-llama2-7b.k8s.yaml`" in done.stderr
    assert [call[0] for call in kubectl.calls()] == ["config", "get"]


def test_options_that_a_deleted_job_left_do_not_stop_the_next(tmp_path: Path, kubectl: Kubectl) -> None:
    synthesize(tmp_path, CLOUD, deployed=True)
    assert run("submit", "--config", CLOUD, "--job", "llama2-7b", cwd=tmp_path).returncode == 0
    assert [call[0] for call in kubectl.calls()] == ["config", "get", "delete", "apply"]


def test_the_first_pod_of_a_static_job_is_its_master(tmp_path: Path, kubectl: Kubectl) -> None:
    job = (REPOSITORY / "config/jobs/llama2-7b.yaml").read_text().replace("rendezvous: etcd", "rendezvous: static")
    (tmp_path / "static.yaml").write_text(job)
    platform = Path(CLOUD).read_text().replace("job: llama2-7b,", "job: ./static.yaml,")
    (tmp_path / "platform.yaml").write_text(platform)
    synthesize(tmp_path, str(tmp_path / "platform.yaml"), deployed=True)
    done = run("submit", "--config", "platform.yaml", "--job", "static", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--follow static-master-0" in done.stdout
    assert kubectl.calls()
