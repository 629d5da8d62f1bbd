import pytest

from config.instances import INSTANCES
from config.sizing import HUGEPAGES_MIB, max_pods, network_interfaces, worker_resources

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
