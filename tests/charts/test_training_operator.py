"""The operator runs with the rights that it uses, serves its webhook by the names fixed in it, and starts at all."""

from __future__ import annotations

from typing import Any

from config.names import NODE_GROUP_LABEL, OPERATOR_NAMESPACE, SYSTEM_NODE_GROUP
from tests.charts.synthesis import Manifests, Object

NAME = "training-operator"
WEBHOOK = "validator.training-operator.kubeflow.org"
SECRET = "training-operator-webhook-cert"

Right = tuple[str, str, str | None, str]


def rights(role: Object) -> set[Right]:
    """Group, resource, object name or None, and verb of everything that a role allows."""
    return {
        (group, resource, name, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [None])
        for verb in rule["verbs"]
    }


def container(manifests: Manifests) -> Any:
    (found,) = manifests.one("Deployment", NAME)["spec"]["template"]["spec"]["containers"]
    return found


def test_its_rights_over_the_cluster_are_those_that_an_audit_log_showed(block: Manifests) -> None:
    """What upstream grants beyond them, above all every Secret of the cluster, it never asks for."""
    watched = {"get", "list", "watch"}
    used: set[Right] = {("kubeflow.org", "pytorchjobs", None, verb) for verb in watched | {"delete"}}
    used |= {("kubeflow.org", "pytorchjobs/status", None, "update")}
    used |= {("", kind, None, verb) for kind in ("pods", "services") for verb in watched | {"create", "delete"}}
    used |= {("", "events", None, verb) for verb in ("create", "patch")}
    webhooks = ("admissionregistration.k8s.io", "validatingwebhookconfigurations")
    used |= {(*webhooks, None, "list"), (*webhooks, None, "watch")}
    used |= {(*webhooks, WEBHOOK, "get"), (*webhooks, WEBHOOK, "update")}
    assert rights(block.one("ClusterRole", NAME)) == used


def test_it_reads_and_writes_one_secret_of_its_own_namespace(block: Manifests) -> None:
    role = block.one("Role", NAME)
    assert role["metadata"]["namespace"] == OPERATOR_NAMESPACE
    assert rights(role) == {
        ("", "secrets", None, "list"),
        ("", "secrets", None, "watch"),
        ("", "secrets", SECRET, "get"),
        ("", "secrets", SECRET, "update"),
    }


def test_it_has_only_the_one_kind_that_is_defined(block: Manifests) -> None:
    """Its other controllers would wait for kinds that the cluster does not have, and end it."""
    assert [arg for arg in container(block)["args"] if "scheme" in arg] == ["--enable-scheme=pytorchjob"]
    defined = [each["spec"]["names"]["singular"] for each in block.every("CustomResourceDefinition")]
    assert defined == ["pytorchjob"]
    (webhook,) = block.one("ValidatingWebhookConfiguration", WEBHOOK)["webhooks"]
    assert webhook["rules"][0]["resources"] == ["pytorchjobs"]


def test_its_webhook_is_reached_through_its_service(block: Manifests) -> None:
    (webhook,) = block.one("ValidatingWebhookConfiguration", WEBHOOK)["webhooks"]
    service = webhook["clientConfig"]["service"]
    # The certificate that the operator makes is for this name and namespace.
    assert (service["name"], service["namespace"]) == (NAME, OPERATOR_NAMESPACE)
    assert webhook["failurePolicy"] == "Fail"
    (port,) = (p for p in block.one("Service", NAME)["spec"]["ports"] if p["port"] == service.get("port", 443))
    assert port["targetPort"] in [p["containerPort"] for p in container(block)["ports"]]


def test_applying_its_secret_again_leaves_the_certificate_in_it(block: Manifests) -> None:
    assert set(block.one("Secret", SECRET)) == {"apiVersion", "kind", "metadata", "type"}


def test_the_certificate_is_mounted_where_the_operator_reads_it(block: Manifests) -> None:
    (volume,) = block.one("Deployment", NAME)["spec"]["template"]["spec"]["volumes"]
    assert volume["secret"]["secretName"] == SECRET
    (mount,) = container(block)["volumeMounts"]
    assert mount["mountPath"] == "/tmp/k8s-webhook-server/serving-certs"


def test_it_is_ready_only_once_its_webhook_answers(block: Manifests) -> None:
    """`kubectl wait` for it is what lets the first job in."""
    assert container(block)["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 8081}
    assert container(block)["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": 8081}


def test_it_knows_its_own_namespace(block: Manifests) -> None:
    fields = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in container(block)["env"]}
    assert fields["MY_POD_NAMESPACE"] == "metadata.namespace"


def test_it_stays_off_the_gpu_nodes(block: Manifests) -> None:
    pod = block.one("Deployment", NAME)["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {NODE_GROUP_LABEL: SYSTEM_NODE_GROUP}
    assert "tolerations" not in pod
