"""The specifications: schema, discovery documents and overlay each state their own part, without repetition."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud.plugins import facts
from localcloud.plugins.overlay import OVERLAYS, resource_type
from localcloud.plugins.schema import PropertySpec, PropertySpecs, ValueKind

# Keywords of the schema, which the overlay must not have.
OF_THE_SCHEMA = {
    "kind",
    "terraform",
    "required",
    "output",
    "computed",
    "force_new",
    "default",
    "secret",
    "one_of",
    "conflicts",
}
# Sent by the real provider in the recordings, and not in the public documents.
UNDOCUMENTED = {
    ("gcp:compute/network:Network", "routingConfig.deleteBgpAlwaysCompareMed"),
    ("gcp:compute/routerNat:RouterNat", "initialNatIps"),
}
# Equal by other means of the real provider: a set's own hash, a function that writes the state, a value equivalent to none.
EQUAL_OTHERWISE = {
    ("gcp:compute/routerNat:RouterNat", "drainNatIps"),
    ("gcp:compute/routerNat:RouterNat", "natIps"),
    ("gcp:storage/bucket:Bucket", "lifecycleRules.condition.withState"),
    ("gcp:storage/bucket:Bucket", "location"),
}
ENTRIES = [(type_name, path) for type_name, each in sorted(OVERLAYS.items()) for path in each.properties]


def walk(fields: PropertySpecs, at: str = "") -> Iterator[tuple[str, PropertySpec]]:
    for name, each in fields.items():
        yield f"{at}{name}", each
        yield from walk(each.item.fields if each.item else each.fields, f"{at}{name}.")


def schema_of(type_name: str, path: str) -> dict:
    at: dict = facts.types()[type_name]
    for step in path.split("."):
        at = next(each for name, each in at["fields"].items() if facts.pulumi_name(name, each) == step)
    return at


def test_the_overlay_has_no_word_of_the_schema():
    assert set(facts.Recorded.__annotations__) & OF_THE_SCHEMA == set()


def test_an_entry_of_the_overlay_says_what_nothing_else_says(subtests):
    for type_name, path in ENTRIES:
        with subtests.test(f"{type_name} {path}"):
            overlay = OVERLAYS[type_name]
            whole = dict(walk(resource_type(type_name).fields))
            for word in overlay.properties[path]:
                fewer = {key: value for key, value in overlay.properties[path].items() if key != word}
                properties = {**overlay.properties, path: fewer}
                without = dict(walk(facts.specifications(type_name, overlay.message, properties)))
                assert without[path] != whole[path], f"{type_name} {path}: {word} repeats what follows anyway"


def test_texts_are_equal_in_another_way_only_where_the_schema_suppresses_a_difference(subtests):
    for type_name, path in ENTRIES:
        with subtests.test(f"{type_name} {path}"):
            if "same" in OVERLAYS[type_name].properties[path] and (type_name, path) not in EQUAL_OTHERWISE:
                assert schema_of(type_name, path).get("diffSuppress") is True


@pytest.mark.parametrize("type_name", sorted(name for name, each in OVERLAYS.items() if each.message))
def test_every_name_in_a_request_is_in_googles_document(type_name):
    overlay = OVERLAYS[type_name]
    bare = dict(walk(facts.specifications(type_name, overlay.message, {})))
    invented = {
        recorded["api"]
        for path, recorded in overlay.properties.items()
        if "api" in recorded and not bare[path].local and recorded["api"] == bare[path].api
    }
    assert invented == set()
    document, _, message = overlay.message.partition("#")
    node = facts._messages(document)[message]
    unknown = {
        (type_name, recorded["api"])
        for path, recorded in overlay.properties.items()
        if "api" in recorded and "." not in path and facts._at(document, node, recorded["api"]) is None
    }
    assert unknown == {entry for entry in UNDOCUMENTED if entry[0] == type_name}


def test_a_property_that_the_schema_does_not_have_is_a_mistake_in_the_overlay():
    with pytest.raises(KeyError, match="gcp:storage/bucket:Bucket has no property nmae"):
        facts.specifications("gcp:storage/bucket:Bucket", "storage.v1#Bucket", {"nmae": {"autoname": True}})


def test_facts_of_the_schema_reach_the_specifications():
    network = resource_type("gcp:compute/network:Network").fields
    assert not network["mtu"].force_new
    assert network["mtu"].computed
    assert network["autoCreateSubnetworks"].force_new
    assert network["autoCreateSubnetworks"].chosen is True
    bucket = resource_type("gcp:storage/bucket:Bucket").fields
    rules = bucket["lifecycleRules"].item
    assert rules is not None
    assert rules.fields["condition"].collapsed
    assert bucket["softDeletePolicy"].fields["retentionDurationSeconds"].long
    service = resource_type("gcp:cloudrunv2/service:Service").fields
    containers = service["template"].fields["containers"].item
    assert containers is not None
    assert containers.fields["ports"].wrapped
    assert containers.fields["envs"].kind is ValueKind.SET
    assert containers.fields["envs"].api == "env"
    assert resource_type("gcp:secretmanager/secretVersion:SecretVersion").fields["secretData"].secret


def test_the_schema_is_part_of_the_distribution():
    home = Path(facts.__file__).parents[1]
    data = tomllib.loads((home / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    matched = {path for pattern in data["localcloud.plugins"] for path in (home / "plugins").glob(pattern)}
    assert home / "plugins" / "data" / "schema.json" in matched


def test_every_type_of_the_schema_has_specifications():
    assert set(OVERLAYS) == set(facts.types())
    for type_name in facts.types():
        assert resource_type(type_name).fields
