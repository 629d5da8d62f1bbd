"""A cluster without a way to the internet pulls from one mirror, from EKS and from the platform's own registry."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from charts.images import eks_registry, mirrored
from config.platform import PlatformConfig
from tests.charts.manifest_checks import pods
from tests.charts.synthesis import Manifests, synthesize

MIRROR = "mirror.example.com:5000/upstream"


def images(manifests: Manifests) -> set[str]:
    """Every image that a pod or the operator starts."""
    named = {container["image"] for pod in pods(manifests.objects) for container in pod.containers}
    (operator,) = manifests.one("Deployment", "training-operator")["spec"]["template"]["spec"]["containers"]
    return named | {match.group(1) for arg in operator["args"] if (match := re.match(r".*-image=(.*)", arg))}


@pytest.fixture(scope="module")
def isolated(block: Manifests, tmp_path_factory: pytest.TempPathFactory) -> Manifests:
    """The platform with a mirror."""
    config = block.platform.config
    assert isinstance(config, PlatformConfig)
    registry = config.registry.model_copy(update={"mirror": MIRROR})
    platform = replace(block.platform, config=config.model_copy(update={"registry": registry}))
    return synthesize(platform, tmp_path_factory.mktemp("isolated"))


def test_a_mirror_holds_every_image_of_others_under_its_full_name(block: Manifests, isolated: Manifests) -> None:
    own = {name for name in images(block) if ".dkr.ecr." in name}
    assert images(isolated) == own | {f"{MIRROR}/{name}" for name in images(block) - own}


def test_an_images_full_name_says_its_registry(block: Manifests) -> None:
    """`alpine` alone would be another image in every registry that is asked first."""
    for name in images(block):
        assert "." in name.partition("/")[0], name


def test_without_a_mirror_an_image_is_what_it_is() -> None:
    assert mirrored("quay.io/coreos/etcd:v1", None) == "quay.io/coreos/etcd:v1"


@pytest.mark.parametrize(
    ("region", "registry"),
    {
        "us-east-2": "602401143452.dkr.ecr.us-east-2.amazonaws.com",
        "ap-southeast-3": "296578399912.dkr.ecr.ap-southeast-3.amazonaws.com",
        "us-gov-west-1": "013241004608.dkr.ecr.us-gov-west-1.amazonaws.com",
        "cn-north-1": "918309763551.dkr.ecr.cn-north-1.amazonaws.com.cn",
    }.items(),
)
def test_eks_has_an_account_of_its_own_in_some_regions(region: str, registry: str) -> None:
    assert eks_registry(region) == registry
