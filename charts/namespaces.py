"""The namespaces, each with the Pod Security level that its pods allow."""

from __future__ import annotations

import cdk8s
from cdk8s_plus_28 import k8s
from constructs import Construct

from config.names import POD_SECURITY


class NamespacesChart(cdk8s.Chart):
    """Namespaces for what this platform runs."""

    def __init__(self, scope: Construct, id_: str, *, names: list[str]) -> None:
        super().__init__(scope, id_)
        for name in names:
            level = POD_SECURITY[name]
            k8s.KubeNamespace(
                self,
                name,
                metadata=k8s.ObjectMeta(
                    name=name,
                    labels={
                        "pod-security.kubernetes.io/enforce": level,
                        "pod-security.kubernetes.io/warn": level,
                    },
                ),
            )
