"""etcd, where the elastic agents of a training job meet."""

from __future__ import annotations

import cdk8s
from cdk8s_plus_28 import k8s
from constructs import Construct

from charts.images import mirrored

# 3.5 is the last minor with the v2 API, which torch's `etcd-v2` rendezvous speaks: https://etcd.io/docs/v3.6/upgrades/
IMAGE = "quay.io/coreos/etcd:v3.5.33"
CLIENT_PORT = 2379
PEER_PORT = 2380
DATA_FOLDER = "/var/lib/etcd"
USER_ID = 65532


class EtcdChart(cdk8s.Chart):
    """One etcd member, reached by the name of its Service."""

    def __init__(
        self, scope: Construct, id_: str, *, namespace: str, node_selector: dict[str, str] | None, mirror: str | None
    ) -> None:
        super().__init__(scope, id_, namespace=namespace)
        labels = {"app.kubernetes.io/name": "etcd"}
        self.host = f"etcd.{namespace}.svc.cluster.local"
        self.port = CLIENT_PORT
        k8s.KubeService(
            self,
            "Client",
            metadata=k8s.ObjectMeta(name="etcd", labels=labels),
            spec=k8s.ServiceSpec(selector=labels, ports=[k8s.ServicePort(name="client", port=CLIENT_PORT)]),
        )
        k8s.KubeDeployment(
            self,
            "Member",
            metadata=k8s.ObjectMeta(name="etcd", labels=labels),
            spec=k8s.DeploymentSpec(
                replicas=1,
                # Two members over one data folder would corrupt it.
                strategy=k8s.DeploymentStrategy(type="Recreate"),
                selector=k8s.LabelSelector(match_labels=labels),
                template=k8s.PodTemplateSpec(
                    metadata=k8s.ObjectMeta(labels=labels), spec=self._pod(node_selector, mirrored(IMAGE, mirror))
                ),
            ),
        )
        # A drain that takes etcd ends every running agent once.
        k8s.KubePodDisruptionBudget(
            self,
            "Budget",
            metadata=k8s.ObjectMeta(name="etcd", labels=labels),
            spec=k8s.PodDisruptionBudgetSpec(
                max_unavailable=k8s.IntOrString.from_number(0), selector=k8s.LabelSelector(match_labels=labels)
            ),
        )
        k8s.KubeNetworkPolicy(
            self,
            "OnlyTraining",
            metadata=k8s.ObjectMeta(name="etcd", labels=labels),
            spec=k8s.NetworkPolicySpec(
                pod_selector=k8s.LabelSelector(match_labels=labels),
                policy_types=["Ingress"],
                ingress=[
                    k8s.NetworkPolicyIngressRule(
                        from_=[k8s.NetworkPolicyPeer(pod_selector=k8s.LabelSelector())],
                        ports=[k8s.NetworkPolicyPort(port=k8s.IntOrString.from_number(CLIENT_PORT))],
                    )
                ],
            ),
        )

    def _pod(self, node_selector: dict[str, str] | None, image: str) -> k8s.PodSpec:
        probe = k8s.HttpGetAction(path="/health", port=k8s.IntOrString.from_number(CLIENT_PORT))
        size = {"cpu": k8s.Quantity.from_string("250m"), "memory": k8s.Quantity.from_string("256Mi")}
        return k8s.PodSpec(
            node_selector=node_selector,
            automount_service_account_token=False,
            # A Service named etcd would put ETCD_* variables into the pod, where etcd looks for its options.
            enable_service_links=False,
            security_context=k8s.PodSecurityContext(
                run_as_non_root=True,
                run_as_user=USER_ID,
                fs_group=USER_ID,
                seccomp_profile=k8s.SeccompProfile(type="RuntimeDefault"),
            ),
            containers=[
                k8s.Container(
                    name="etcd",
                    image=image,
                    command=["etcd"],
                    args=[
                        "--name=etcd",
                        f"--data-dir={DATA_FOLDER}",
                        "--enable-v2=true",
                        f"--listen-client-urls=http://0.0.0.0:{CLIENT_PORT}",
                        # Clients replace the address that they were given by the one advertised here.
                        f"--advertise-client-urls=http://{self.host}:{CLIENT_PORT}",
                        f"--listen-peer-urls=http://127.0.0.1:{PEER_PORT}",
                        f"--initial-advertise-peer-urls=http://127.0.0.1:{PEER_PORT}",
                        f"--initial-cluster=etcd=http://127.0.0.1:{PEER_PORT}",
                    ],
                    ports=[k8s.ContainerPort(name="client", container_port=CLIENT_PORT)],
                    readiness_probe=k8s.Probe(http_get=probe, period_seconds=5),
                    liveness_probe=k8s.Probe(http_get=probe, period_seconds=15, failure_threshold=8),
                    resources=k8s.ResourceRequirements(requests=size, limits=size),
                    security_context=k8s.SecurityContext(
                        allow_privilege_escalation=False,
                        read_only_root_filesystem=True,
                        capabilities=k8s.Capabilities(drop=["ALL"]),
                    ),
                    volume_mounts=[k8s.VolumeMount(name="data", mount_path=DATA_FOLDER)],
                )
            ],
            # Outlives a restart of the container, after which the agents rejoin under the same id.
            volumes=[
                k8s.Volume(name="data", empty_dir=k8s.EmptyDirVolumeSource(size_limit=k8s.Quantity.from_string("1Gi")))
            ],
        )
