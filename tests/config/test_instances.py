from dataclasses import fields

import pytest

from config.instances import INSTANCES, REFUSED_INSTANCES


@pytest.mark.parametrize("instance_type", INSTANCES)
def test_every_card_takes_at_most_one_efa_interface(instance_type: str) -> None:
    facts = INSTANCES[instance_type]
    cards_with_efa = facts.network_cards - (0 if facts.efa_on_card_0 else 1)
    assert facts.efa_interfaces_per_node == cards_with_efa


@pytest.mark.parametrize("instance_type", INSTANCES)
def test_pods_are_offered_less_memory_than_the_node_has(instance_type: str) -> None:
    facts = INSTANCES[instance_type]
    assert 0.85 * facts.memory_gib * 1024 < facts.allocatable_memory_mib < facts.memory_gib * 1024


@pytest.mark.parametrize("instance_type", INSTANCES)
def test_no_count_or_size_is_left_at_zero(instance_type: str) -> None:
    facts = INSTANCES[instance_type]
    assert all(getattr(facts, f.name) for f in fields(facts) if f.type == "int")


def test_b300_keeps_efa_off_its_first_card_and_so_has_one_card_more_than_efa_interfaces() -> None:
    facts = INSTANCES["p6-b300.48xlarge"]
    assert (facts.network_cards, facts.efa_interfaces_per_node, facts.efa_on_card_0) == (17, 16, False)


def test_a_type_is_either_known_or_refused() -> None:
    assert not INSTANCES.keys() & REFUSED_INSTANCES.keys()
