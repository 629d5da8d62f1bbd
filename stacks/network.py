"""NetworkStack: the VPC, its subnets and ways out, and the security group that training nodes share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_logs as logs
from constructs import Construct

from config.platform import MAX_ZONES, NetworkConfig
from config.sizing import subnet_prefixes
from stacks.efa import EfaSecurityGroup

# What a node calls between its launch and its first training step: the CNI attaches addresses, the kubelet pulls
# images (the layers come through the S3 gateway) and Pod Identity hands out credentials. With these, nodes start while
# a NAT gateway is down. Each costs about a cent an hour in its one zone, and a p5.48xlarge fifty-five dollars.
# https://aws.amazon.com/privatelink/pricing/
ENDPOINTS = ("ec2", "ecr.api", "ecr.dkr", "eks-auth")


class NetworkStack(cdk.Stack):
    """Where nodes and file servers live. A VPC that exists gets the nodes' security group and nothing else.

    `private_subnets` maps each zone of the config to the id of its subnet.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: NetworkConfig,
        zones: Sequence[str],
        gpu_zone: str,
        **kwargs: Any,
    ) -> None:
        # The base class reads the property below while it is being constructed.
        self._zones = list(zones)
        super().__init__(scope, id_, **kwargs)
        self.vpc: ec2.IVpc
        if config.vpc is not None:
            self.vpc = ec2.Vpc.from_vpc_attributes(self, "Vpc", vpc_id=config.vpc.id, availability_zones=self._zones)
            self.private_subnets = dict(config.vpc.private_subnets)
        else:
            vpc = self._make_vpc(config, gpu_zone)
            self.vpc = vpc
            self.private_subnets = {subnet.availability_zone: subnet.subnet_id for subnet in vpc.private_subnets}
        self.node_security_group = EfaSecurityGroup(self, "Nodes", vpc=self.vpc).group

    @property
    def availability_zones(self) -> list[str]:
        """The configured zones, so that the CDK looks none up."""
        return self._zones

    def _make_vpc(self, config: NetworkConfig, gpu_zone: str) -> ec2.Vpc:
        # Both linters would rather have the zones looked up.
        reason = "The zones are where the capacity is, which the config says"
        cdk.Validations.of(self).acknowledge(cdk.Acknowledgment(id="CloudFormation-Validate::W3010", reason=reason))
        self.template_options.metadata = {"cfn-lint": {"config": {"ignore_checks": ["W3010"]}}}
        prefixes = subnet_prefixes(config.cidr)
        is_one_gateway = config.nat_gateways == "one"
        vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(config.cidr),
            availability_zones=self._zones,
            # Room for zones that are added later, which would otherwise move the subnets that exist.
            reserved_azs=MAX_ZONES - len(self._zones),
            subnet_configuration=[
                ec2.SubnetConfiguration(
                    name="Public",
                    subnet_type=ec2.SubnetType.PUBLIC,
                    cidr_mask=prefixes.public,
                    map_public_ip_on_launch=False,
                ),
                ec2.SubnetConfiguration(
                    name="Private", subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS, cidr_mask=prefixes.private
                ),
            ],
            nat_gateways=1 if is_one_gateway else len(self._zones),
            # A single gateway stands where most of the traffic is, so that it crosses no zone.
            nat_gateway_subnets=ec2.SubnetSelection(
                subnet_type=ec2.SubnetType.PUBLIC, availability_zones=[gpu_zone] if is_one_gateway else self._zones
            ),
            # Emptying the default group takes a Lambda; nothing here uses that group.
            restrict_default_security_group=False,
            gateway_endpoints={
                "S3": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.S3),
            },
        )
        self._add_endpoints(vpc, config.cidr, gpu_zone)
        # Rejected connections only: they say which rule is missing, and EFA passes flow logs by anyway.
        log_group = logs.LogGroup(
            self, "FlowLogs", retention=logs.RetentionDays.ONE_MONTH, removal_policy=cdk.RemovalPolicy.DESTROY
        )
        vpc.add_flow_log(
            "RejectedConnections",
            traffic_type=ec2.FlowLogTrafficType.REJECT,
            destination=ec2.FlowLogDestination.to_cloud_watch_logs(log_group),
        )
        return vpc

    def _add_endpoints(self, vpc: ec2.Vpc, cidr: str, gpu_zone: str) -> None:
        group = ec2.SecurityGroup(
            self, "Endpoints", vpc=vpc, description="Interface endpoints", allow_all_outbound=False
        )
        group.add_ingress_rule(ec2.Peer.ipv4(cidr), ec2.Port.HTTPS, "Everything in the VPC")
        subnets = ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS, availability_zones=[gpu_zone])
        for service in ENDPOINTS:
            vpc.add_interface_endpoint(
                service,
                service=ec2.InterfaceVpcEndpointService(f"com.amazonaws.{self.region}.{service}", 443),
                private_dns_enabled=True,
                subnets=subnets,
                security_groups=[group],
                open=False,
            )
