"""If Google's documents exclude the wildcard `-` as location, the local cloud rejects it."""

import json
from importlib.resources import files

import pytest

from localcloud.rest.discovery import VERSIONS

DOCUMENTS = files("googleapiclient.discovery_cache.documents")


def described(resource):
    """(method, parameter) pairs whose text excludes the wildcard, read from the document itself."""
    for method in resource.get("methods", {}).values():
        for name, parameter in method.get("parameters", {}).items():
            if 'cannot be the "-" wildcard' in parameter.get("description", ""):
                yield method, name
    for below in resource.get("resources", {}).values():
        yield from described(below)


REFUSING = [
    pytest.param(api, method, name, id=method["id"])
    for api, versions in VERSIONS.items()
    for document in versions.values()
    for method, name in described(json.loads((DOCUMENTS / f"{document}.json").read_text()))
]


def test_the_documents_name_the_method_that_the_stacks_use():
    assert "run.projects.locations.services.list" in [parameter.id for parameter in REFUSING]


@pytest.mark.parametrize(("api", "method", "name"), REFUSING)
def test_the_wildcard_is_refused(client, api, method, name):
    path = f"/{api}/" + method["path"].replace("{+" + name + "}", "projects/local-project/locations/-")
    status, answer = client.call(method["httpMethod"], path)
    assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert 'cannot be the "-" wildcard' in answer["error"]["message"]
    assert answer["error"]["details"][0]["fieldViolations"][0]["field"] == name


def test_a_region_is_taken_and_the_wildcard_of_other_methods_too(client):
    assert client.ok("GET", "/run/v2/projects/local-project/locations/us-east4/services") is not None
    assert client.ok("GET", "/tpu/v2alpha1/projects/local-project/locations/-/nodes") is not None
    assert client.ok("GET", "/run/v2/projects/local-project/locations/us-east4/services/-/revisions") is not None
