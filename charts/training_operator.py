"""The Kubeflow training operator, which turns PyTorchJobs into pods, with the least rights that it works with."""

from __future__ import annotations

import cdk8s
from cdk8s_plus_28 import k8s
from constructs import Construct

from charts.images import mirrored

# v1.9.4. The project publishes images under commits, not releases:
# https://github.com/kubeflow/trainer/blob/v1.9.4/manifests/overlays/standalone/kustomization.yaml
IMAGE = "ghcr.io/kubeflow/training-v1/training-operator:v1-93c5489"
# Waits in the Workers of a `static` job until the Master's name resolves. The operator's own default, by its last
# patch: its `nslookup` ends with success though the name has no IPv6 address.
INIT_IMAGE = "docker.io/library/alpine:3.10.9"

NAME = "training-operator"
CERTIFICATE_SECRET = "training-operator-webhook-cert"  # noqa: S105, its name, which is fixed in the operator
WEBHOOK_CONFIGURATION = "validator.training-operator.kubeflow.org"  # fixed in the operator
WEBHOOK_PORT = 9443
METRICS_PORT = 8080
PROBE_PORT = 8081
USER_ID = 65532
CERTIFICATE_FOLDER = "/tmp/k8s-webhook-server/serving-certs"  # noqa: S108, fixed in the operator


class TrainingOperatorChart(cdk8s.Chart):
    """The operator, its webhook, and its rights: jobs, pods and Services everywhere, one Secret of its own."""

    def __init__(
        self, scope: Construct, id_: str, *, namespace: str, node_selector: dict[str, str] | None, mirror: str | None
    ) -> None:
        super().__init__(scope, id_)
        labels = {"app.kubernetes.io/name": NAME}
        metadata = k8s.ObjectMeta(name=NAME, namespace=namespace, labels=labels)
        k8s.KubeServiceAccount(self, "Account", metadata=metadata)
        self._rights(namespace, labels)
        # Without data, so that applying it again does not wipe the certificate that the operator wrote into it.
        k8s.KubeSecret(
            self,
            "Certificate",
            metadata=k8s.ObjectMeta(name=CERTIFICATE_SECRET, namespace=namespace, labels=labels),
            type="Opaque",
        )
        k8s.KubeService(
            self,
            "Webhook",
            metadata=metadata,
            spec=k8s.ServiceSpec(
                selector=labels,
                ports=[
                    k8s.ServicePort(name="webhook", port=443, target_port=k8s.IntOrString.from_number(WEBHOOK_PORT)),
                    k8s.ServicePort(name="metrics", port=METRICS_PORT),
                ],
            ),
        )
        k8s.KubeDeployment(
            self,
            "Operator",
            metadata=metadata,
            spec=k8s.DeploymentSpec(
                replicas=1,
                selector=k8s.LabelSelector(match_labels=labels),
                template=k8s.PodTemplateSpec(
                    metadata=k8s.ObjectMeta(labels=labels), spec=self._pod(node_selector, mirror)
                ),
            ),
        )
        k8s.KubeValidatingWebhookConfiguration(
            self,
            "Validation",
            metadata=k8s.ObjectMeta(name=WEBHOOK_CONFIGURATION, labels=labels),
            webhooks=[
                k8s.ValidatingWebhook(
                    name="validator.pytorchjob.training-operator.kubeflow.org",
                    admission_review_versions=["v1"],
                    client_config=k8s.WebhookClientConfig(
                        service=k8s.ServiceReference(
                            name=NAME, namespace=namespace, path="/validate-kubeflow-org-v1-pytorchjob"
                        )
                    ),
                    failure_policy="Fail",
                    side_effects="None",
                    rules=[
                        k8s.RuleWithOperations(
                            api_groups=["kubeflow.org"],
                            api_versions=["v1"],
                            operations=["CREATE", "UPDATE"],
                            resources=["pytorchjobs"],
                        )
                    ],
                )
            ],
        )

    def _rights(self, namespace: str, labels: dict[str, str]) -> None:
        """What the audit log of an API server showed it to use, and the `list` that its watches fall back to."""
        everywhere = [
            _allow("kubeflow.org", "pytorchjobs", "get", "list", "watch", "delete"),
            _allow("kubeflow.org", "pytorchjobs/status", "update"),
            _allow("", "pods", "get", "list", "watch", "create", "delete"),
            _allow("", "services", "get", "list", "watch", "create", "delete"),
            _allow("", "events", "create", "patch"),
            _allow("admissionregistration.k8s.io", "validatingwebhookconfigurations", "list", "watch"),
            _allow(
                "admissionregistration.k8s.io",
                "validatingwebhookconfigurations",
                "get",
                "update",
                name=WEBHOOK_CONFIGURATION,
            ),
        ]
        at_home = [
            _allow("", "secrets", "list", "watch"),
            _allow("", "secrets", "get", "update", name=CERTIFICATE_SECRET),
        ]
        account = [k8s.Subject(kind="ServiceAccount", name=NAME, namespace=namespace)]
        group = "rbac.authorization.k8s.io"
        cluster_wide = k8s.ObjectMeta(name=NAME, labels=labels)
        own = k8s.ObjectMeta(name=NAME, namespace=namespace, labels=labels)
        k8s.KubeClusterRole(self, "ClusterRole", metadata=cluster_wide, rules=everywhere)
        k8s.KubeClusterRoleBinding(
            self,
            "ClusterRoleBinding",
            metadata=cluster_wide,
            role_ref=k8s.RoleRef(api_group=group, kind="ClusterRole", name=NAME),
            subjects=account,
        )
        k8s.KubeRole(self, "Role", metadata=own, rules=at_home)
        k8s.KubeRoleBinding(
            self,
            "RoleBinding",
            metadata=own,
            role_ref=k8s.RoleRef(api_group=group, kind="Role", name=NAME),
            subjects=account,
        )

    def _pod(self, node_selector: dict[str, str] | None, mirror: str | None) -> k8s.PodSpec:
        def probe(path: str, *, initial: int, period: int) -> k8s.Probe:
            target = k8s.HttpGetAction(path=path, port=k8s.IntOrString.from_number(PROBE_PORT))
            return k8s.Probe(http_get=target, initial_delay_seconds=initial, period_seconds=period, timeout_seconds=3)

        def field(path: str) -> k8s.EnvVarSource:
            return k8s.EnvVarSource(field_ref=k8s.ObjectFieldSelector(field_path=path))

        size = {"cpu": k8s.Quantity.from_string("200m"), "memory": k8s.Quantity.from_string("512Mi")}
        return k8s.PodSpec(
            node_selector=node_selector,
            service_account_name=NAME,
            termination_grace_period_seconds=10,
            security_context=k8s.PodSecurityContext(
                run_as_non_root=True,
                run_as_user=USER_ID,
                seccomp_profile=k8s.SeccompProfile(type="RuntimeDefault"),
            ),
            containers=[
                k8s.Container(
                    name=NAME,
                    image=mirrored(IMAGE, mirror),
                    command=["/manager"],
                    # Its other controllers would wait for kinds that this cluster does not have.
                    args=[
                        "--enable-scheme=pytorchjob",
                        f"--pytorch-init-container-image={mirrored(INIT_IMAGE, mirror)}",
                    ],
                    env=[
                        k8s.EnvVar(name="MY_POD_NAMESPACE", value_from=field("metadata.namespace")),
                        k8s.EnvVar(name="MY_POD_NAME", value_from=field("metadata.name")),
                    ],
                    ports=[
                        k8s.ContainerPort(name="webhook", container_port=WEBHOOK_PORT),
                        k8s.ContainerPort(name="metrics", container_port=METRICS_PORT),
                    ],
                    liveness_probe=probe("/healthz", initial=15, period=20),
                    readiness_probe=probe("/readyz", initial=10, period=15),
                    resources=k8s.ResourceRequirements(requests=size, limits=size),
                    security_context=k8s.SecurityContext(
                        allow_privilege_escalation=False,
                        read_only_root_filesystem=True,
                        capabilities=k8s.Capabilities(drop=["ALL"]),
                    ),
                    volume_mounts=[k8s.VolumeMount(name="certificate", mount_path=CERTIFICATE_FOLDER, read_only=True)],
                )
            ],
            volumes=[
                k8s.Volume(
                    name="certificate",
                    secret=k8s.SecretVolumeSource(secret_name=CERTIFICATE_SECRET, default_mode=0o444),
                )
            ],
        )


def _allow(group: str, resource: str, *verbs: str, name: str | None = None) -> k8s.PolicyRule:
    return k8s.PolicyRule(
        api_groups=[group],
        resources=[resource],
        verbs=list(verbs),
        resource_names=None if name is None else [name],
    )
