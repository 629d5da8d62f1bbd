"""The service account of training pods: it may read pods of its namespace, to find the job that owns its own."""

from __future__ import annotations

import cdk8s
from cdk8s_plus_28 import k8s
from constructs import Construct

from config.names import TRAINER_SERVICE_ACCOUNT


class TrainerAccessChart(cdk8s.Chart):
    """Account, role and binding."""

    def __init__(self, scope: Construct, id_: str, *, namespace: str) -> None:
        super().__init__(scope, id_, namespace=namespace)
        name = TRAINER_SERVICE_ACCOUNT
        metadata = k8s.ObjectMeta(name=name)
        # The init container that needs its token mounts it; the trainer never sees one.
        k8s.KubeServiceAccount(self, "Account", metadata=metadata, automount_service_account_token=False)
        k8s.KubeRole(
            self, "Role", metadata=metadata, rules=[k8s.PolicyRule(api_groups=[""], resources=["pods"], verbs=["get"])]
        )
        k8s.KubeRoleBinding(
            self,
            "Binding",
            metadata=metadata,
            role_ref=k8s.RoleRef(api_group="rbac.authorization.k8s.io", kind="Role", name=name),
            subjects=[k8s.Subject(kind="ServiceAccount", name=name, namespace=namespace)],
        )
