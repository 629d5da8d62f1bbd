"""Training pods may look themselves up, and nothing else."""

from __future__ import annotations

from config.names import TRAINER_SERVICE_ACCOUNT, TRAINING_NAMESPACE
from tests.charts.synthesis import Manifests


def test_the_account_of_trainers_may_only_get_pods_of_its_namespace(manifests: Manifests) -> None:
    role = manifests.one("Role", TRAINER_SERVICE_ACCOUNT)
    assert role["metadata"]["namespace"] == TRAINING_NAMESPACE
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    bound = [
        binding
        for kind in ("RoleBinding", "ClusterRoleBinding")
        for binding in manifests.every(kind)
        if any(subject["name"] == TRAINER_SERVICE_ACCOUNT for subject in binding["subjects"])
    ]
    assert [binding["roleRef"]["name"] for binding in bound] == [TRAINER_SERVICE_ACCOUNT]


def test_its_token_is_mounted_only_where_a_pod_asks_for_it(manifests: Manifests) -> None:
    assert manifests.one("ServiceAccount", TRAINER_SERVICE_ACCOUNT)["automountServiceAccountToken"] is False
