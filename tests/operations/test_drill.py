"""The drill's stand-ins keep what the drill is about: order and references."""

from __future__ import annotations

from typing import Any

from operations.drill.stand_ins import references, stand_in_for

TEMPLATE: dict[str, Any] = {
    "Resources": {
        "Group": {"Type": "AWS::EC2::SecurityGroup", "Properties": {"VpcId": {"Ref": "Vpc"}}},
        "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {}},
        "Files": {
            "Type": "AWS::FSx::FileSystem",
            "Properties": {"SecurityGroupIds": [{"Fn::GetAtt": ["Group", "GroupId"]}], "StorageCapacity": 1200},
            "DependsOn": ["Vpc"],
            "DeletionPolicy": "Delete",
        },
        "User": {"Type": "AWS::EC2::Subnet", "Properties": {"Tag": {"Fn::GetAtt": ["Files", "DNSName"]}}},
    },
    "Outputs": {"Name": {"Value": {"Fn::GetAtt": ["Files", "DNSName"]}}},
}


def test_known_types_stay_and_unknown_ones_keep_their_place_in_the_order() -> None:
    made = stand_in_for(TEMPLATE)["Resources"]
    assert made["Group"] == TEMPLATE["Resources"]["Group"]
    assert made["Files"]["Type"] == "AWS::SSM::Parameter"
    assert made["Files"]["DependsOn"] == ["Vpc"]
    assert made["Files"]["DeletionPolicy"] == "Delete"
    assert list(references(made["Files"]["Properties"])) == [{"Fn::GetAtt": ["Group", "GroupId"]}]


def test_attributes_that_a_stand_in_lacks_become_references_to_it() -> None:
    made = stand_in_for(TEMPLATE)
    assert made["Resources"]["User"]["Properties"]["Tag"] == {"Ref": "Files"}
    assert made["Outputs"]["Name"]["Value"] == {"Ref": "Files"}


def test_a_changed_property_is_a_changed_stand_in() -> None:
    other = {**TEMPLATE, "Resources": {**TEMPLATE["Resources"]}}
    other["Resources"]["Files"] = {
        **TEMPLATE["Resources"]["Files"],
        "Properties": {**TEMPLATE["Resources"]["Files"]["Properties"], "StorageCapacity": 2400},
    }
    assert stand_in_for(other) != stand_in_for(TEMPLATE)
