"""Every instance type, bought every way, in every layout: what has failed for other people must hold for all.

One platform carries a node group for each combination, so that one synthesis serves all tests.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email import message_from_string
from typing import Any

import pytest
import yaml

from config.instances import INSTANCES
from config.names import EFA_LABEL, FSX_STARTUP_TAINT, GPU_LABEL, GPU_TAINT, NODE_GROUP_LABEL
from config.platform import NodeGroupConfig
from config.sizing import max_pods
from tests.synthesis import Resource, Synthesized, config_from, lint, values_of

ZONE = "us-east-2a"
ARN = "arn:aws:resource-groups:us-east-2:111122223333:group/blocks"
RESERVED = {"availability_zone": ZONE, "instance_count": 1, "active": True}
PURCHASES: dict[str, dict[str, Any]] = {
    "on-demand": {"purchase": "on_demand", "availability_zone": ZONE},
    "reservation": {"purchase": "capacity_reservation", "reservation": {**RESERVED, "id": "cr-0123456789abcdef0"}},
    "resource-group": {"purchase": "capacity_reservation", "reservation": {**RESERVED, "resource_group_arn": ARN}},
    "block": {
        "purchase": "capacity_block",
        "reservation": {**RESERVED, "id": "cr-0fedcba9876543210", "ends_at": datetime(2027, 1, 15, 11, 30, tzinfo=UTC)},
    },
}
GROUPS: dict[str, dict[str, Any]] = {
    f"{type_.replace('.', '-')}-{purchase}-{layout.lower()}": {
        "instance_type": type_,
        "interface_layout": layout,
        "max_size": 1,
        **PURCHASES[purchase],
    }
    for type_, purchase, layout in itertools.product(INSTANCES, PURCHASES, ("B", "A2"))
}
NAMED_PLACEMENT = "p5-in-placement-group"
GROUPS[NAMED_PLACEMENT] = {
    "instance_type": "p5.48xlarge",
    "max_size": 1,
    "placement_group": "mine",
    **PURCHASES["reservation"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One node group: what was asked for, and what came of it."""

    config: NodeGroupConfig
    nodes: Resource
    template: dict[str, Any]

    @property
    def interfaces(self) -> list[dict[str, Any]]:
        interfaces: list[dict[str, Any]] = self.template["NetworkInterfaces"]
        return interfaces

    @property
    def primary(self) -> dict[str, Any]:
        (primary,) = [i for i in self.interfaces if (i["NetworkCardIndex"], i["DeviceIndex"]) == (0, 0)]
        return primary


@pytest.fixture(scope="session")
def matrix(synthesize: Callable[..., Synthesized]) -> Synthesized:
    values = values_of("p5-reservation")
    values["node_groups"] = [{"name": name, **group} for name, group in GROUPS.items()]
    return synthesize(config_from(values))


@pytest.fixture(params=GROUPS)
def group(request: pytest.FixtureRequest, matrix: Synthesized) -> Group:
    """Each combination in turn."""
    config = matrix.config.node_group(request.param)
    assert config is not None
    found = [
        nodes
        for nodes in matrix.resources("node-groups", "AWS::EKS::Nodegroup").values()
        if nodes["Properties"]["Labels"][NODE_GROUP_LABEL] == request.param
    ]
    (nodes,) = found
    template_id = nodes["Properties"]["LaunchTemplate"]["Id"]["Ref"]
    template = matrix.templates["node-groups"]["Resources"][template_id]["Properties"]["LaunchTemplateData"]
    return Group(config=config, nodes=nodes["Properties"], template=template)


def test_no_interface_lies_outside_its_card(group: Group) -> None:
    """EKS refuses the group: cards of p5 take two interfaces, and tools set the index to the number of the card."""
    facts = group.config.instance
    for interface in group.interfaces:
        assert interface["DeviceIndex"] < facts.interfaces_per_card
        assert interface["NetworkCardIndex"] < facts.network_cards


def test_the_efa_interfaces_are_as_many_as_the_type_takes(group: Group) -> None:
    """The launch fails where the number of cards is taken for it: p6-b300 has 17 cards and takes 16."""
    carrying = [i for i in group.interfaces if i["InterfaceType"] in ("efa", "efa-only")]
    assert len(carrying) == group.config.instance.efa_interfaces_per_node


def test_a_card_for_ena_only_carries_no_efa(group: Group) -> None:
    """No p6-b300 starts with EFA on its first card."""
    if not group.config.instance.efa_on_card_0:
        assert [i["InterfaceType"] for i in group.interfaces if i["NetworkCardIndex"] == 0] == ["interface"]


def test_ip_and_efa_are_apart_unless_the_shared_layout_is_asked_for(group: Group) -> None:
    """A combined interface on every card takes an address each, 31 more on a p5, and mixes two security groups."""
    types = [i["InterfaceType"] for i in group.interfaces]
    is_shared = group.config.interface_layout == "A2" and group.config.instance.efa_on_card_0
    assert types.count("interface") == (0 if is_shared else 1)
    assert types.count("efa") == (1 if is_shared else 0)


def test_every_interface_says_its_card_and_no_two_share_a_place(group: Group) -> None:
    """Without the card's number all interfaces land on card 0, and the launch fails or EFA runs on one card."""
    places = [(i["NetworkCardIndex"], i["DeviceIndex"]) for i in group.interfaces]
    assert len(set(places)) == len(places)


def test_no_interface_names_a_subnet(group: Group) -> None:
    """EKS adds the subnet itself, and refuses a launch template that has one."""
    assert not [i for i in group.interfaces if "SubnetId" in i]


def test_groups_stand_on_the_interfaces_and_nowhere_else(group: Group) -> None:
    """EC2 refuses security groups of the instance beside those of interfaces."""
    assert not group.template.keys() & {"SecurityGroupIds", "SecurityGroups"}
    assert all(i["Groups"] for i in group.interfaces)


def test_the_template_holds_nothing_that_eks_adds_itself(group: Group) -> None:
    """EKS refuses templates with an instance profile, a shutdown behaviour or, with its own image, an image."""
    forbidden = {"IamInstanceProfile", "InstanceInitiatedShutdownBehavior", "HibernationOptions", "ImageId"}
    assert not group.template.keys() & forbidden
    assert not group.nodes.keys() & {"DiskSize", "RemoteAccess", "ReleaseVersion"}


def test_the_primary_interface_is_in_the_clusters_group(group: Group) -> None:
    """With groups of its own, EKS adds the cluster's to none, and the node never reaches the API server."""
    (cluster,) = [g for g in group.primary["Groups"] if "cluster" in g["Fn::GetStackOutput"]["StackName"]]
    assert "ClusterSecurityGroupId" in cluster["Fn::GetStackOutput"]["OutputName"]


def test_every_efa_interface_is_in_the_efa_group_and_so_is_the_primary(group: Group, matrix: Synthesized) -> None:
    """EC2 drops EFA traffic of interfaces outside a group that admits itself; Lustre comes through the primary."""
    efa_group = matrix.one("network", "AWS::EC2::SecurityGroupEgress")["Properties"]["GroupId"]
    (name,) = [n for n, o in matrix.templates["network"]["Outputs"].items() if o["Value"] == efa_group]
    for interface in group.interfaces:
        assert name in [g["Fn::GetStackOutput"]["OutputName"] for g in interface["Groups"]]


def test_a_reservation_is_targeted_by_exactly_one_name_that_is_not_empty(group: Group) -> None:
    """An empty target is dropped without a word, and the nodes are bought on demand beside the paid reservation."""
    if group.config.reservation is None:
        assert "CapacityReservationSpecification" not in group.template
        return
    specification = group.template["CapacityReservationSpecification"]
    # EC2 takes a target or a preference, and not both.
    assert set(specification) == {"CapacityReservationTarget"}
    reservation = group.config.reservation
    expected = (
        {"CapacityReservationId": reservation.id}
        if reservation.id
        else {"CapacityReservationResourceGroupArn": reservation.resource_group_arn}
    )
    assert specification["CapacityReservationTarget"] == expected


def test_a_capacity_block_is_said_in_the_template_and_in_the_node_group(group: Group) -> None:
    """With one of the two missing, the block is ignored or the launch refused."""
    if group.config.purchase == "capacity_block":
        assert group.template["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
        assert group.nodes["CapacityType"] == "CAPACITY_BLOCK"
    else:
        assert "InstanceMarketOptions" not in group.template
        assert group.nodes["CapacityType"] == "ON_DEMAND"


def test_no_placement_group_is_used_unless_it_is_named(group: Group) -> None:
    """Eleven of sixteen reserved nodes came up where a tool added a cluster placement group by itself."""
    if group.config.placement_group:
        assert group.template["Placement"] == {"GroupName": "mine"}
    else:
        assert "Placement" not in group.template


def test_nodes_start_in_one_subnet_in_the_zone_of_the_capacity(group: Group, matrix: Synthesized) -> None:
    """In any other zone there is no capacity, and the whole stack rolls back."""
    (subnet,) = group.nodes["Subnets"]
    output = matrix.templates["network"]["Outputs"][subnet["Fn::GetStackOutput"]["OutputName"]]
    properties = matrix.templates["network"]["Resources"][output["Value"]["Ref"]]["Properties"]
    assert properties["AvailabilityZone"] == group.config.zone
    assert not properties["MapPublicIpOnLaunch"]


def test_the_instance_type_is_named_once_in_the_template(group: Group) -> None:
    """EKS refuses a type in both places, and takes a block's only from the template."""
    assert group.template["InstanceType"] == group.config.instance_type
    assert "InstanceTypes" not in group.nodes


def test_an_update_of_reserved_nodes_stops_one_before_it_starts_another(group: Group) -> None:
    """By default a new node starts first, and where all are reserved there is none: the update hangs and fails."""
    strategy = group.nodes["UpdateConfig"]["UpdateStrategy"]
    assert strategy == ("DEFAULT" if group.config.reservation is None else "MINIMAL")
    assert group.nodes["UpdateConfig"]["MaxUnavailable"] == 1


def test_an_update_forces_no_pod_away(group: Group) -> None:
    """The CDK's own node groups force it, and an evicted trainer costs everybody's steps since the checkpoint."""
    assert group.nodes["ForceUpdateEnabled"] is False


def test_the_image_with_the_gpu_driver_is_named(group: Group) -> None:
    """Left to a default it is an image of Amazon Linux 2, which is gone, or one without a driver."""
    assert group.nodes["AmiType"] == "AL2023_x86_64_NVIDIA"


def test_the_template_has_the_tag_of_the_platform_and_no_other(group: Group) -> None:
    specifications = group.template["TagSpecifications"]
    assert {s["ResourceType"] for s in specifications} >= {"instance", "volume"}
    assert all(s["Tags"] == [{"Key": "platform", "Value": "p5-reservation"}] for s in specifications)


def test_user_data_is_mime_with_a_node_config_and_no_script(group: Group) -> None:
    """Raw user data is refused, and a bootstrap script beside EKS's own starts the kubelet twice."""
    message = message_from_string(group.template["UserData"]["Fn::Base64"])
    assert message.is_multipart()
    parts = [part for part in message.walk() if not part.is_multipart()]
    assert [part.get_content_type() for part in parts] == ["application/node.eks.aws"]


def node_config(group: Group) -> dict[str, Any]:
    message = message_from_string(group.template["UserData"]["Fn::Base64"])
    (part,) = [part for part in message.walk() if not part.is_multipart()]
    config: dict[str, Any] = yaml.safe_load(str(part.get_payload()))
    assert (config["apiVersion"], config["kind"]) == ("node.eks.aws/v1alpha1", "NodeConfig")
    spec: dict[str, Any] = config["spec"]
    return spec


def test_a_node_promises_no_more_pods_than_its_interfaces_can_address(group: Group) -> None:
    """EKS's own figure does not know of the EFA-only interface on card 0, and pods then wait for an address."""
    expected = max_pods(group.config.instance, group.config.interface_layout)
    assert node_config(group)["kubelet"]["config"]["maxPods"] == expected


def test_images_and_scratch_lie_on_the_local_disks(group: Group) -> None:
    """Unless asked, a node leaves its disks unused and fills its root volume with the first training image."""
    assert node_config(group)["instance"]["localStorage"]["strategy"] == "RAID0"


def test_pods_cannot_reach_the_nodes_credentials_and_volumes_are_encrypted(group: Group) -> None:
    options = group.template["MetadataOptions"]
    assert (options["HttpTokens"], options["HttpPutResponseHopLimit"]) == ("required", 1)
    assert all(mapping["Ebs"]["Encrypted"] for mapping in group.template["BlockDeviceMappings"])


def test_a_node_takes_no_pod_before_it_can_mount_and_none_without_a_gpu_claim(group: Group) -> None:
    """A pod on a node whose driver is not ready fails its mount with status 19 and is not tried elsewhere."""
    taints = {taint["Key"]: taint["Effect"] for taint in group.nodes["Taints"]}
    assert taints == {GPU_TAINT: "NO_SCHEDULE", FSX_STARTUP_TAINT: "NO_EXECUTE"}


def test_a_node_carries_the_labels_that_charts_select_by(group: Group) -> None:
    """The EFA device plugin crashes in a loop on nodes without EFA interfaces, so it selects by this label."""
    assert group.nodes["Labels"] == {NODE_GROUP_LABEL: group.config.name, GPU_LABEL: "true", EFA_LABEL: "true"}


def test_a_broken_node_is_replaced(group: Group) -> None:
    assert group.nodes["NodeRepairConfig"]["Enabled"] is True


def test_nodes_follow_the_version_of_their_cluster(group: Group, matrix: Synthesized) -> None:
    cluster = matrix.one("cluster", "AWS::EKS::Cluster")
    assert group.nodes["Version"] == cluster["Properties"]["Version"] == matrix.config.kubernetes_version


def test_a_changed_template_reaches_the_nodes(group: Group) -> None:
    """A version written as a number, or $Latest, leaves the nodes as they were."""
    launch_template = group.nodes["LaunchTemplate"]
    assert launch_template["Version"] == {"Fn::GetAtt": [launch_template["Id"]["Ref"], "LatestVersionNumber"]}


def test_a_group_that_cannot_start_leaves_the_cluster_and_the_data_alone(matrix: Synthesized) -> None:
    """Where capacity is missing, CloudFormation rolls the whole stack back, so GPU nodes have one to themselves."""
    types = {resource["Type"] for resource in matrix.templates["node-groups"]["Resources"].values()}
    assert types == {"AWS::IAM::Role", "AWS::EC2::LaunchTemplate", "AWS::EKS::Nodegroup"}


def test_a_block_that_has_not_begun_keeps_its_group_at_zero(shipped: Callable[[str], Synthesized]) -> None:
    """EKS fails to create a group that wants nodes of a block before the block begins."""
    platform = shipped("p5-capacity-block")
    scaling = platform.one("node-groups", "AWS::EKS::Nodegroup")["Properties"]["ScalingConfig"]
    assert (scaling["MinSize"], scaling["DesiredSize"]) == (0, 0)
    assert scaling["MaxSize"] == 4


def test_a_node_may_join_and_pull_and_nothing_else(matrix: Synthesized) -> None:
    role = matrix.one("node-groups", "AWS::IAM::Role")["Properties"]
    policies = {json.dumps(arn).rpartition("policy/")[2].split('"')[0] for arn in role["ManagedPolicyArns"]}
    assert policies == {"AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly"}
    assert "Policies" not in role


def test_groups_whose_names_differ_by_a_hyphen_are_two(synthesize: Callable[..., Synthesized]) -> None:
    """CloudFormation's ids hold letters and digits only."""
    values = values_of("p5-4xlarge-on-demand")
    (group,) = values["node_groups"]
    values["node_groups"] = [{**group, "name": "p5-a"}, {**group, "name": "p5a"}]
    platform = synthesize(config_from(values))
    assert len(platform.resources("node-groups", "AWS::EKS::Nodegroup")) == 2


def test_cfn_lint_finds_nothing_wrong_with_any_combination(matrix: Synthesized) -> None:
    # E3628 is right: the platform of this test holds types that its region does not sell.
    assert [match for match in lint(matrix) if "E3628" not in match] == []
