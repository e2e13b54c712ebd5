"""The specifications: schema, discovery documents and overlay each state their own part, without repetition."""

from collections.abc import Iterator

import pytest

from localcloud.plugins import facts
from localcloud.plugins.overlay import OVERLAYS, resource_type
from localcloud.plugins.schema import PropertySpec, PropertySpecs

# Sent by the real provider in the recordings, and not in the public documents.
UNDOCUMENTED = {
    ("gcp:compute/network:Network", "routingConfig.deleteBgpAlwaysCompareMed"),
    ("gcp:compute/routerNat:RouterNat", "initialNatIps"),
}


def walk(fields: PropertySpecs, at: str = "") -> Iterator[tuple[str, PropertySpec]]:
    for name, each in fields.items():
        yield f"{at}{name}", each
        yield from walk(each.item.fields if each.item else each.fields, f"{at}{name}.")


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


def test_every_type_of_the_schema_has_specifications():
    assert set(OVERLAYS) == set(facts.types())
    for type_name in facts.types():
        assert resource_type(type_name).fields
