import ipaddress

import pytest

from config.instances import INSTANCES
from config.platform import MAX_ZONES
from config.sizing import (
    HUGEPAGES_MIB,
    addresses_per_node,
    checkpoint_seconds,
    max_pods,
    network_interfaces,
    subnet_prefixes,
    usable_addresses,
    worker_resources,
)

EVERY_TYPE = pytest.mark.parametrize("instance_type", INSTANCES)
EVERY_LAYOUT = pytest.mark.parametrize("layout", ["B", "A2"])


@EVERY_TYPE
@EVERY_LAYOUT
def test_a_node_gets_exactly_the_efa_interfaces_that_pods_may_ask_for(instance_type: str, layout: str) -> None:
    facts = INSTANCES[instance_type]
    carrying_efa = [i for i in network_interfaces(facts, layout) if i.type != "interface"]  # type: ignore[arg-type]
    assert len(carrying_efa) == facts.efa_interfaces_per_node


@EVERY_TYPE
@EVERY_LAYOUT
def test_no_two_interfaces_share_a_place_and_no_place_lies_outside_its_card(instance_type: str, layout: str) -> None:
    """EKS refuses device index 2 on a card that takes two interfaces, as p5's do."""
    facts = INSTANCES[instance_type]
    places = [(i.network_card, i.device) for i in network_interfaces(facts, layout)]  # type: ignore[arg-type]
    assert len(set(places)) == len(places)
    assert all(card < facts.network_cards and device < facts.interfaces_per_card for card, device in places)


@EVERY_TYPE
@EVERY_LAYOUT
def test_the_primary_interface_is_first_and_carries_ip(instance_type: str, layout: str) -> None:
    primary = network_interfaces(INSTANCES[instance_type], layout)[0]  # type: ignore[arg-type]
    assert (primary.network_card, primary.device) == (0, 0)
    assert primary.type != "efa-only"


@EVERY_TYPE
def test_layout_b_never_mixes_ip_and_efa(instance_type: str) -> None:
    types = [i.type for i in network_interfaces(INSTANCES[instance_type], "B")]
    assert types.count("interface") == 1
    assert "efa" not in types


@EVERY_LAYOUT
def test_b300_puts_no_efa_on_its_first_card(layout: str) -> None:
    """Card 0 of p6-b300 takes ENA only, and an EFA interface there fails the launch."""
    interfaces = network_interfaces(INSTANCES["p6-b300.48xlarge"], layout)  # type: ignore[arg-type]
    assert [i.type for i in interfaces if i.network_card == 0] == ["interface"]


@pytest.mark.parametrize(
    ("instance_type", "without_loss", "with_layout_b"),
    [
        ("p4de.24xlarge", 737, 688),
        ("p5.4xlarge", 118, 89),
        ("p5.48xlarge", 100, 51),
        ("p5en.48xlarge", 198, 149),
        ("p6-b200.48xlarge", 198, 149),
        ("p6-b300.48xlarge", 198, 198),
    ],
)
def test_pods_per_node_are_karpenters_figures(instance_type: str, without_loss: int, with_layout_b: int) -> None:
    assert max_pods(INSTANCES[instance_type], "A2") == without_loss
    assert max_pods(INSTANCES[instance_type], "B") == with_layout_b


@EVERY_TYPE
def test_a_worker_leaves_room_for_hugepages_and_agents(instance_type: str) -> None:
    facts = INSTANCES[instance_type]
    worker = worker_resources(facts)
    assert worker.memory_mib + HUGEPAGES_MIB < facts.allocatable_memory_mib
    assert 0.75 * facts.vcpus < worker.cpus < facts.vcpus - 1
    assert worker.hugepages_mib <= HUGEPAGES_MIB


@pytest.mark.parametrize("cidr", ["10.0.0.0/16", "172.31.16.0/20"])
def test_the_subnets_of_as_many_zones_as_are_allowed_fit_into_the_vpc(cidr: str) -> None:
    network = ipaddress.IPv4Network(cidr)
    prefixes = subnet_prefixes(cidr)
    used = MAX_ZONES * (2 ** (32 - prefixes.public) + 2 ** (32 - prefixes.private))
    assert used <= network.num_addresses
    assert prefixes.public <= 28, "the smallest subnet that AWS makes"


def test_a_default_vpc_holds_eighty_nodes_of_the_type_that_takes_most_addresses() -> None:
    needed = max(addresses_per_node(facts, "B") for facts in INSTANCES.values())
    assert usable_addresses(subnet_prefixes("10.0.0.0/16").private) // needed >= 80


@EVERY_TYPE
def test_a_node_takes_the_addresses_of_the_interfaces_that_carry_ip_and_no_others(instance_type: str) -> None:
    """EFA-only interfaces take none; a subnet sized by the number of interfaces would be thirty times too large."""
    facts = INSTANCES[instance_type]
    with_efa_on_card_0 = facts.interfaces_per_card - (1 if facts.efa_on_card_0 else 0)
    assert addresses_per_node(facts, "B") == min(2, with_efa_on_card_0) * facts.addresses_per_interface


def test_a_checkpoint_is_written_at_the_baseline_of_the_file_system() -> None:
    """12 bytes a parameter, at 250 MB/s from each of 2400 GiB's 2.34 TiB."""
    one_billion = checkpoint_seconds(parameters=10**9, capacity_gib=2400, throughput_mbps_per_tib=250)
    assert one_billion == 21  # 12e9 / (2.34375 * 250e6) = 20.48
    larger = checkpoint_seconds(parameters=10**9, capacity_gib=4800, throughput_mbps_per_tib=250)
    assert larger == 11
