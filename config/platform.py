"""PlatformConfig and its parts: what one YAML file in `config/platforms/` says, checked, with the jobs it names."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from config.instances import INSTANCES, REFUSED_INSTANCES, InstanceFacts
from config.job import NAME_PATTERN, JobConfig, MountPath, TrainingJob
from config.names import METRICS_PORT, PLATFORM_TAG, SYSTEM_NODE_GROUP
from config.sizing import InterfaceLayout, addresses_per_node, checkpoint_seconds, subnet_prefixes, usable_addresses
from trainer.config import ConfigError, Model

# The standard-support versions that aws-cdk-lib 2.275 and kubernetes-validate 1.37 both know.
KubernetesVersion = Literal["1.33", "1.34", "1.35", "1.36"]
Purchase = Literal["on_demand", "capacity_reservation", "capacity_block"]
# The address plan of the VPC holds this many.
MAX_ZONES = 4
# Addresses of the GPU nodes' subnet that others take: the control plane, endpoints, system nodes and file servers.
OTHER_ADDRESSES = 100
PRIVATE_NETWORKS = tuple(map(ipaddress.IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))
WIDEST_PUBLIC_ACCESS = 8
MOST_TAGS = 45
TAG_KEY = r"[\w\s+\-=.:/@]{1,128}"
TAG_VALUE = r"[\w\s+\-=.:/@]{0,256}"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
AvailabilityZone = Annotated[str, StringConstraints(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9][a-z]$")]
SubnetId = Annotated[str, StringConstraints(pattern=r"^subnet-[0-9a-f]{8,17}$")]
RoleOrUserArn = Annotated[str, StringConstraints(pattern=r"^arn:aws[a-z-]*:iam::[0-9]{12}:(role|user)/.+$")]


class ExistingVpcConfig(Model):
    """A VPC that somebody else owns: its ways out, endpoints and logs are theirs too, and nothing in it is changed."""

    id: str = Field(pattern=r"^vpc-[0-9a-f]{8,17}$", description="Id of the VPC.")
    private_subnets: dict[AvailabilityZone, SubnetId] = Field(
        description="For each of availability_zones, the subnet for its nodes. It needs a way out."
    )


class NetworkConfig(Model):
    """The VPC that the platform makes, or one that exists."""

    vpc: ExistingVpcConfig | None = Field(None, description="Existing VPC to use in place of a new one.")
    cidr: str = Field("10.0.0.0/16", description="IPv4 range of the VPC, /16 to /20.")
    nat_gateways: Literal["one", "one_per_zone"] = Field(
        "one", description="`one` costs least; `one_per_zone` survives the loss of a zone."
    )

    @field_validator("cidr")
    @classmethod
    def _cidr_is_a_private_network(cls, value: str) -> str:
        try:
            network = ipaddress.IPv4Network(value)
        except ValueError as error:
            raise ValueError(f"must be an IPv4 network such as 10.0.0.0/16 ({error})") from None
        if not 16 <= network.prefixlen <= 20:
            raise ValueError("must be a /16 to a /20, which hold a subnet a zone with room for pods; change the prefix")
        if not any(network.subnet_of(private) for private in PRIVATE_NETWORKS):
            raise ValueError(f"must lie in one of {', '.join(map(str, PRIVATE_NETWORKS))}; choose a range of your own")
        return value

    @model_validator(mode="after")
    def _an_existing_vpc_is_as_it_is(self) -> Self:
        if self.vpc is not None:
            _refuse_beside("vpc", self)
        return self


class SystemNodeGroupConfig(Model):
    """The nodes without GPUs, for etcd, the operator and the add-ons."""

    instance_type: str = Field("m7i.xlarge", pattern=r"^[a-z][a-z0-9-]*\.[a-z0-9]+$", description="EC2 instance type.")
    size: int = Field(2, ge=2, description="Nodes. Two, so that one can be replaced.")

    @field_validator("instance_type")
    @classmethod
    def _instance_type_is_x86(cls, value: str) -> str:
        # A g behind the generation is Graviton: https://docs.aws.amazon.com/ec2/latest/instancetypes/instance-type-names.html
        family = value.partition(".")[0]
        if re.fullmatch(r"a1|[a-z]+[0-9]+[a-z]*g[a-z]*", family):
            raise ValueError(
                "must be an x86 type, since the nodes start from an x86 image; choose one such as m7i.xlarge"
            )
        return value


class ExistingClusterConfig(Model):
    """A cluster that somebody else owns: its access, add-ons and logs are theirs too, and only node groups are added.

    Nodes carry no permissions for the VPC CNI, so its add-on must have a role of its own; the CSI driver of FSx for
    Lustre and the Pod Identity agent must be there.
    """

    name: str = Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_-]{0,99}$", description="Name of the cluster.")
    security_group_id: str = Field(
        pattern=r"^sg-[0-9a-f]{8,17}$", description="Its cluster security group, which EKS made."
    )


class ContainerInsightsConfig(Model):
    """CloudWatch's own view of the cluster, by its add-on. It bills for every metric and every line of log."""

    log_retention_days: Literal[1, 7, 30, 90] = Field(7, description="Days that CloudWatch keeps the pods' logs.")


class ClusterConfig(Model):
    """The EKS control plane and who may use it, or a cluster that exists; and the nodes without GPUs."""

    existing: ExistingClusterConfig | None = Field(None, description="Existing cluster to use in place of a new one.")
    admins: tuple[RoleOrUserArn, ...] = Field(
        (),
        strict=False,
        description="IAM roles or users that administer the cluster. Whoever deploys does not, unless named.",
    )
    public_access_cidrs: tuple[str, ...] = Field(
        (),
        strict=False,
        description="IPv4 ranges that reach the API server from outside the VPC. None: the endpoint is private.",
    )
    system_node_group: SystemNodeGroupConfig = Field(default=SystemNodeGroupConfig(), description="Nodes without GPUs.")
    log_retention_days: Literal[7, 30, 90, 365] = Field(30, description="Days that control-plane logs are kept.")
    container_insights: ContainerInsightsConfig | None = Field(
        None, description="CloudWatch Container Insights. Absent: only what the platform's own charts show."
    )

    @field_validator("admins")
    @classmethod
    def _admins_are_named_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if repeated := [arn for arn in value if value.count(arn) > 1]:
            raise ValueError(f"each must be named once, got {repeated[0]} twice; remove one")
        return value

    @field_validator("public_access_cidrs")
    @classmethod
    def _public_access_names_real_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for cidr in value:
            try:
                network = ipaddress.IPv4Network(cidr)
            except ValueError as error:
                raise ValueError(f"{cidr!r} is not an IPv4 network ({error}); write 198.51.100.0/24") from None
            if network.prefixlen < WIDEST_PUBLIC_ACCESS:
                raise ValueError(
                    f"{cidr!r} opens the API server to more of the internet than a /{WIDEST_PUBLIC_ACCESS}, "
                    "which no single company holds; name your own ranges"
                )
        return value

    @model_validator(mode="after")
    def _an_existing_cluster_is_as_it_is(self) -> Self:
        if self.existing is not None:
            _refuse_beside("existing", self, besides=("system_node_group",))
        return self


class ReservationConfig(Model):
    """A capacity reservation or capacity block that exists in the account."""

    id: str | None = Field(None, pattern=r"^cr-[0-9a-f]{8,17}$", description="Id of the reservation or block.")
    resource_group_arn: str | None = Field(
        None,
        pattern=r"^arn:aws[a-z-]*:resource-groups:[a-z0-9-]+:[0-9]{12}:group/.+$",
        description="Resource group of capacity reservations, in place of an id.",
    )
    availability_zone: AvailabilityZone = Field(description="Zone of the reservation; the nodes and the data go there.")
    instance_count: int = Field(gt=0, description="Instances reserved.")
    active: bool = Field(False, description="Whether it has begun. Until then its node group stays at zero.")
    ends_at: datetime | None = Field(None, description="End, with its time zone. A capacity block needs it.")

    @model_validator(mode="after")
    def _names_exactly_one_target(self) -> Self:
        if (self.id is None) == (self.resource_group_arn is None):
            raise ValueError(
                f"needs exactly one of id and resource_group_arn, got {self.id} and {self.resource_group_arn}"
            )
        if self.ends_at is not None and self.ends_at.tzinfo is None:
            raise ValueError(f"ends_at needs a time zone, got {self.ends_at}; write {self.ends_at.isoformat()}Z")
        return self


class NodeGroupConfig(Model):
    """One group of GPU nodes: a type, a way to buy it, and how many."""

    name: Name = Field(description="Name of the group; jobs refer to it.")
    instance_type: str = Field(description=f"One of {', '.join(INSTANCES)}.")
    purchase: Purchase = Field(description="How the instances are bought.")
    interface_layout: InterfaceLayout = Field(
        "B", description="`B` keeps IP and EFA on interfaces of their own; `A2` shares the primary and fits more pods."
    )
    min_size: int = Field(0, ge=0, description="Fewest nodes.")
    desired_size: int = Field(0, ge=0, description="Nodes now. Scaling is another deploy with another number.")
    # https://docs.aws.amazon.com/eks/latest/userguide/service-quotas.html
    max_size: int = Field(gt=0, le=450, description="Most nodes; EKS allows a managed node group 450.")
    reservation: ReservationConfig | None = Field(None, description="What was reserved; on demand has none.")
    availability_zone: AvailabilityZone | None = Field(None, description="Zone of a group without a reservation.")
    placement_group: str | None = Field(
        None,
        min_length=1,
        description="Existing placement group. A reservation made inside one serves no other launch.",
    )

    @field_validator("name")
    @classmethod
    def _name_is_not_that_of_the_system_nodes(cls, value: str) -> str:
        if value == SYSTEM_NODE_GROUP:
            raise ValueError("is the name of the nodes without GPUs; choose another")
        return value

    @field_validator("instance_type")
    @classmethod
    def _instance_type_is_in_the_table(cls, value: str) -> str:
        if value in REFUSED_INSTANCES:
            raise ValueError(
                f"{value} is refused, since {REFUSED_INSTANCES[value]}; choose one of {', '.join(INSTANCES)}"
            )
        if value not in INSTANCES:
            raise ValueError(f"must be one of {', '.join(INSTANCES)}")
        return value

    @model_validator(mode="after")
    def _purchase_sizes_and_zone_agree(self) -> Self:
        if not self.min_size <= self.desired_size <= self.max_size:
            raise ValueError(
                f"sizes must rise from min_size to desired_size to max_size, got {self.min_size}, {self.desired_size}, "
                f"{self.max_size}; change the one that is out of order"
            )
        if self.purchase == "on_demand":
            if self.reservation is not None:
                raise ValueError(
                    "purchase on_demand takes no reservation, got one; remove it or name the purchase it belongs to"
                )
            if self.availability_zone is None:
                raise ValueError("availability_zone: is missing; a group without a reservation names its zone")
            return self
        if self.reservation is None:
            raise ValueError(f"purchase {self.purchase} needs a reservation, got none; add it, or buy on_demand")
        if self.availability_zone is not None:
            raise ValueError(
                f"availability_zone: a reserved group is in its reservation's zone, got {self.availability_zone}; "
                "remove it"
            )
        self._check_reservation(self.reservation)
        return self

    def _check_reservation(self, reservation: ReservationConfig) -> None:
        if self.max_size > reservation.instance_count:
            raise ValueError(
                f"max_size: the reservation holds {reservation.instance_count} instances, got {self.max_size}; lower it"
            )
        if self.desired_size and not reservation.active:
            raise ValueError(
                f"desired_size: must be 0 while the reservation is not active, got {self.desired_size}; "
                "set reservation.active: true once it has begun"
            )
        if self.purchase == "capacity_block" and (reservation.id is None or reservation.ends_at is None):
            raise ValueError(
                "reservation: a capacity block is named by id and has an end, got one without; add id and ends_at"
            )

    @property
    def zone(self) -> str:
        """The one availability zone its nodes start in."""
        zone = self.reservation.availability_zone if self.reservation else self.availability_zone
        assert zone is not None, "the model validator demands a zone"
        return zone

    @property
    def instance(self) -> InstanceFacts:
        """What its instance type is."""
        return INSTANCES[self.instance_type]


class StorageConfig(Model):
    """The FSx for Lustre file system, in the GPU nodes' zone, and the S3 bucket behind it."""

    capacity_gib: int = Field(4800, description="GiB: 1200, or a multiple of 2400.")
    throughput_mbps_per_tib: Literal[125, 250, 500, 1000] = Field(250, description="MB/s for each TiB of capacity.")
    compression: Literal["LZ4", "NONE"] = Field("LZ4", description="Compression of the data on disk.")
    metadata_iops: int | None = Field(
        None, description="Metadata operations a second to pay for, beside those that come with the capacity."
    )
    mount_path: MountPath = Field("/fsx", description="Where pods find the file system: one folder below the root.")
    bucket: str | None = Field(
        None, pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", description="Existing bucket to use in place of a new one."
    )

    @field_validator("capacity_gib")
    @classmethod
    def _capacity_is_a_size_that_fsx_sells(cls, value: int) -> int:
        # https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/aws-resource-fsx-filesystem.html
        if value != 1200 and (value < 1 or value % 2400):
            larger = 1200 if value < 1200 else (value // 2400 + 1) * 2400
            raise ValueError(f"must be 1200 or a multiple of 2400, got {value}; the next size up is {larger}")
        return value

    @field_validator("metadata_iops")
    @classmethod
    def _metadata_iops_are_sold(cls, value: int | None) -> int | None:
        # https://docs.aws.amazon.com/fsx/latest/LustreGuide/managing-metadata-performance.html
        if value is not None and value not in (1500, 3000, 6000, *range(12000, 192001, 12000)):
            raise ValueError("must be 1500, 3000, 6000 or a multiple of 12000 up to 192000; change it or remove it")
        return value


class RegistryConfig(Model):
    """The ECR repository of the trainer's image, and where the images of others come from."""

    images_to_keep: int = Field(20, gt=0, description="Newest images to keep.")
    mirror: str | None = Field(
        None,
        pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?(/[a-z0-9]+([._-][a-z0-9]+)*)*$",
        description="Registry that holds every image of others under its full name, for nodes that reach no other: "
        "REGISTRY/quay.io/coreos/etcd:TAG.",
    )


class JobReference(Model):
    """A job that the platform runs, where, and on how many nodes."""

    job: str = Field(min_length=1, description="Name of a file in config/jobs, or a path from the platform file.")
    node_group: Name = Field(description="Node group it runs on.")
    nodes: int = Field(gt=0, description="Nodes, each with one worker replica that takes all GPUs.")


class PlatformConfig(Model):
    """A platform on AWS: everything that the stacks and charts are made from."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{1,30}[a-z0-9]$")] = Field(
        description="Name of the platform: the cluster's name, and the first part of every stack's."
    )
    account: str = Field(pattern=r"^[0-9]{12}$", description="AWS account, 12 digits in quotes.")
    region: str = Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]$", description="AWS region.")
    availability_zones: tuple[AvailabilityZone, ...] = Field(
        strict=False, min_length=2, max_length=MAX_ZONES, description="Zones of the VPC."
    )
    kubernetes_version: KubernetesVersion = Field("1.36", description="Version of the cluster and its nodes.")
    teardown: Literal["retain", "delete"] = Field(
        description="Whether the bucket with data and checkpoints outlives a destroy. Everything else goes."
    )
    tags: dict[str, str] = Field(default={}, description="Tags for cost allocation. Changing them replaces no node.")
    network: NetworkConfig = Field(default=NetworkConfig(), description="The VPC.")
    cluster: ClusterConfig = Field(default=ClusterConfig(), description="The EKS cluster.")
    node_groups: tuple[NodeGroupConfig, ...] = Field(strict=False, min_length=1, description="Groups of GPU nodes.")
    storage: StorageConfig = Field(default=StorageConfig(), description="Shared file system and bucket.")
    registry: RegistryConfig = Field(default=RegistryConfig(), description="Image repository.")
    jobs: tuple[JobReference, ...] = Field((), strict=False, description="Training jobs, each a manifest of its own.")

    @field_validator("tags")
    @classmethod
    def _tags_are_free(cls, value: dict[str, str]) -> dict[str, str]:
        if taken := [key for key in value if key == PLATFORM_TAG or key.lower().startswith("aws:")]:
            raise ValueError(f"{taken[0]} is set by the platform or by AWS; rename the tag")
        # https://docs.aws.amazon.com/tag-editor/latest/userguide/best-practices-and-strats.html
        if len(value) > MOST_TAGS:
            raise ValueError(
                f"must be at most {MOST_TAGS}, since AWS takes 50 and adds its own, got {len(value)}; drop some"
            )
        for key, text in value.items():
            if not re.fullmatch(TAG_KEY, key) or not re.fullmatch(TAG_VALUE, text):
                raise ValueError(
                    f"{key[:40]!r}: a tag is a key of 1 to 128 and a value of at most 256 letters, digits, spaces and "
                    f"+ - = . _ : / @, got {text[:40]!r}; change it"
                )
        return value

    @model_validator(mode="after")
    def _zones_and_groups_agree(self) -> Self:
        for zone in self.availability_zones:
            if zone[:-1] != self.region:
                raise ValueError(
                    f"availability_zones: must lie in region {self.region}, got {zone}; change one of the two"
                )
        _refuse_twice("availability_zones", self.availability_zones)
        _refuse_twice("node_groups", [group.name for group in self.node_groups])
        zones = {group.name: group.zone for group in self.node_groups}
        for name, zone in zones.items():
            if zone not in self.availability_zones:
                raise ValueError(
                    f"node_groups: {name} is in {zone}, which is not one of availability_zones "
                    f"{', '.join(self.availability_zones)}; add the zone to them"
                )
        if len(set(zones.values())) > 1:
            places = ", ".join(f"{name} in {zone}" for name, zone in zones.items())
            raise ValueError(
                f"node_groups: all must be in one zone, that of the file system they share, got {places}; "
                "use one platform for each zone"
            )
        self._check_what_exists()
        self._check_addresses()
        return self

    def _check_what_exists(self) -> None:
        vpc = self.network.vpc
        if vpc is not None and vpc.private_subnets.keys() != set(self.availability_zones):
            raise ValueError(
                f"network.vpc.private_subnets: must name a subnet for each of availability_zones "
                f"{', '.join(self.availability_zones)} and no other, got {', '.join(vpc.private_subnets) or 'none'}; "
                "make the two agree"
            )
        if self.cluster.existing is not None and vpc is None:
            raise ValueError(
                f"cluster.existing: {self.cluster.existing.name} has a VPC of its own, and network.vpc is absent; "
                "name that VPC there"
            )

    def _check_addresses(self) -> None:
        if self.network.vpc is not None:
            return
        needed = OTHER_ADDRESSES + sum(
            group.max_size * addresses_per_node(group.instance, group.interface_layout) for group in self.node_groups
        )
        private = subnet_prefixes(self.network.cidr).private
        if needed > usable_addresses(private):
            raise ValueError(
                f"network.cidr: its subnets are /{private}, which hold {usable_addresses(private)} addresses, and all "
                f"nodes at max_size take {needed}, got {self.network.cidr}; widen the range or lower max_size"
            )

    @property
    def gpu_zone(self) -> str:
        """The availability zone of every GPU node and of the file system."""
        return self.node_groups[0].zone

    def node_group(self, name: str) -> NodeGroupConfig | None:
        """The group of that name, if there is one."""
        return next((group for group in self.node_groups if group.name == name), None)

    def place(self, name: str, job: JobConfig, reference: JobReference) -> TrainingJob:
        """A job on one of this platform's node groups.

        Raises:
            ConfigError: no such group, or a group with fewer nodes.
        """
        group = self.node_group(reference.node_group)
        if group is None:
            known = ", ".join(group.name for group in self.node_groups)
            raise ConfigError(
                f"node_group: must be one of {known}, got {reference.node_group}; rename it or add the group"
            )
        if reference.nodes > group.max_size:
            raise ConfigError(
                f"nodes: must not exceed max_size {group.max_size} of node group {group.name}, got {reference.nodes}; "
                "lower it, or enlarge the group and its reservation"
            )
        facts = group.instance
        return TrainingJob(
            name=name,
            node_group=group.name,
            instance=facts,
            nodes=reference.nodes,
            processes_per_node=facts.gpus_per_node,
            rendezvous=job.rendezvous,
            image=job.image,
            checkpoint_seconds=checkpoint_seconds(
                parameters=job.trainer.model_parameters,
                capacity_gib=self.storage.capacity_gib,
                throughput_mbps_per_tib=self.storage.throughput_mbps_per_tib,
            ),
            trainer=job.trainer_on(
                name=name,
                mount_path=self.storage.mount_path,
                device="cuda",
                peak_tflops_per_gpu=float(facts.peak_bf16_tflops_per_gpu),
                metrics_port=METRICS_PORT,
            ),
        )


def _refuse_beside(existing: str, model: Model, *, besides: Sequence[str] = ()) -> None:
    """Options that would change what exists."""
    if given := sorted(model.model_fields_set - {existing, *besides}):
        raise ValueError(
            f"{given[0]}: belongs to what the platform makes, and {existing} names what exists, "
            f"got {getattr(model, given[0])!r}; remove one of the two"
        )


def _refuse_twice(field: str, values: Sequence[str]) -> None:
    if repeated := [value for value in values if values.count(value) > 1]:
        raise ValueError(f"{field}: each must be named once, got {repeated[0]} twice; remove or rename one")
