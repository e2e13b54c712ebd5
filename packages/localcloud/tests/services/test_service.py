"""The one shape of a service: marked methods by discovery id, and one list answer."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from localcloud import services
from localcloud.rest.discovery import VERSIONS
from localcloud.rest.errors import CloudError
from localcloud.services.service import ApiService, listing, method, name_prefix

ITEMS = [(f"thing-{index}", {"name": f"thing-{index}", "even": index % 2 == 0}) for index in range(5)]


class Base(ApiService):
    prefix = "api.things"

    @method("get")
    def get(self, call):
        return {"from": "base"}

    @method("patch", "update")
    def patch(self, call):
        return {}


class Derived(Base):
    @method("get")
    def get(self, call):
        return {"from": "derived"}


def test_a_service_answers_the_methods_that_it_marks_and_inherits(shared_cloud):
    handlers = Derived(shared_cloud.cloud).handlers()
    assert sorted(handlers) == ["api.things.get", "api.things.patch", "api.things.update"]
    assert handlers["api.things.get"](None) == {"from": "derived"}


def test_every_modelled_method_is_a_method_of_a_service(shared_cloud):
    foreign = [
        name
        for name, handler in services.handlers(shared_cloud.cloud).items()
        if not isinstance(getattr(handler, "__self__", None), ApiService)
    ]
    assert foreign == []


def test_every_api_with_a_document_has_modules():
    assert set(services.MODULES) == set(VERSIONS)


def test_the_first_requests_of_an_api_load_its_methods_once(own_client, monkeypatch):
    loaded, handlers = [], services.handlers

    def noted(cloud, apis):
        loaded.extend(apis)
        return handlers(cloud, apis)

    monkeypatch.setattr(services, "handlers", noted)
    path = "/tpu/v2alpha1/projects/local-project/locations/us-east5-b/nodes"
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: own_client.call("GET", path), range(8)))
    assert [status for status, _ in found] == [200] * 8
    assert loaded == ["tpu"]


def test_the_command_starts_without_what_a_first_request_imports():
    code = (
        "import sys; from localcloud.thin_sdk import leave_the_sdk_out; leave_the_sdk_out(); import localcloud.cli; "
        "late = ('cel', 'PIL', 'promql_parser', 'google.protobuf', 'localcloud.plugins.gcp', 'localcloud.running.revisions', "
        "'localcloud.services.run', 'localcloud.services.tpu', 'localcloud.vllm.server'); print([name for name in late if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_list_answer_is_filtered_and_paged():
    first = listing({"filter": "even=true", "pageSize": 2}, "things", ITEMS, total=True)
    assert [item["name"] for item in first["things"]] == ["thing-0", "thing-2"]
    assert first["totalSize"] == 3
    second = listing({"filter": "even=true", "pageToken": first["nextPageToken"]}, "things", ITEMS)
    assert second == {"things": [{"name": "thing-4", "even": True}]}


def test_an_empty_list_answer_has_no_key():
    assert listing({}, "things", []) == {}
    assert listing({}, "things", [], total=True) == {"totalSize": 0}


def test_a_list_answer_takes_its_own_page_tokens_only():
    with pytest.raises(CloudError, match="Invalid page token"):
        listing({"pageToken": "made-up"}, "things", ITEMS)


def test_a_dash_stands_for_every_parent_of_its_kind():
    assert name_prefix("projects/p/locations/-", "nodes") == "projects/p/locations/"
    assert name_prefix("projects/p/locations/z", "nodes") == "projects/p/locations/z/nodes/"
