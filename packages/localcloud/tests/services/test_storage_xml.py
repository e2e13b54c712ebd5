"""Reads of Cloud Storage's XML API: the same state, permissions and counts as the JSON API, and errors in XML."""

import xml.etree.ElementTree as ET

import pytest
import requests

from localcloud.tests.conftest import ALICE, PROJECT

CONTENT = bytes(range(256)) * 4
NAME = "m/small file.bin"
ADDRESS = "/weights/m%2Fsmall%20file.bin"


class Reader:
    """Sends reads with a token."""

    def __init__(self, base_url, token):
        self.base_url, self.token = base_url, token

    def read(self, path, verb="GET", **headers):
        login = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return requests.request(verb, self.base_url + path, headers={**login, **named}, timeout=30)

    def error(self, path, **headers):
        answer = self.read(path, **headers)
        assert answer.headers["Content-Type"].startswith("application/xml"), answer.text
        found = ET.fromstring(answer.content)  # noqa: S314 - the local cloud wrote it
        assert found.tag == "Error"
        return answer.status_code, found.findtext("Code"), found.findtext("Details") or ""


@pytest.fixture
def store(own_cloud, own_client):
    """A bucket with one object; put() overwrites it and returns its generation."""

    def put(content=CONTENT):
        answer = requests.post(
            f"{own_cloud.base_url}/upload/storage/v1/b/weights/o",
            params={"uploadType": "media", "name": NAME},
            data=content,
            headers={"Authorization": f"Bearer {own_cloud.token}"},
            timeout=30,
        )
        return answer.json()["generation"]

    own_client.ok("POST", "/storage/storage/v1/b", {"name": "weights", "location": "US-EAST4"}, project=PROJECT)
    return put


@pytest.fixture
def reader(own_cloud):
    return Reader(own_cloud.base_url, own_cloud.token)


class TestReads:
    def test_a_range_of_a_generation_is_partial_content_with_its_hash(self, store, reader):
        generation = store()
        answer = reader.read(f"{ADDRESS}?generation={generation}", Range="bytes=10-19")
        assert (answer.status_code, answer.content) == (206, CONTENT[10:20])
        assert answer.headers["Content-Range"] == f"bytes 10-19/{len(CONTENT)}"
        assert answer.headers["X-Goog-Generation"] == generation
        assert "crc32c=" in answer.headers["X-Goog-Hash"]

    def test_slashes_of_a_name_can_be_plain(self, store, reader):
        store()
        assert reader.read("/weights/m/small%20file.bin").content == CONTENT

    def test_head_has_the_headers_and_no_bytes(self, store, reader):
        store()
        answer = reader.read(ADDRESS, verb="HEAD")
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["Content-Length"] == str(len(CONTENT))

    def test_a_bucket_with_the_name_of_an_api_is_read_and_hides_no_method(self, own_cloud, own_client, reader):
        own_client.ok("POST", "/storage/storage/v1/b", {"name": "run", "location": "US-EAST4"}, project=PROJECT)
        assert reader.error("/run/config.json")[1] == "NoSuchKey"
        assert own_client.call("GET", f"/run/v2/projects/{PROJECT}/locations/us-east4/services")[0] == 200


class TestErrors:
    def test_another_generation_than_the_live_one_does_not_exist(self, store, reader):
        former = store()
        store(b"other")
        assert reader.error(f"{ADDRESS}?generation={former}")[:2] == (404, "NoSuchKey")

    @pytest.mark.parametrize(
        ("path", "code"), [("/weights/none", "NoSuchKey"), ("/no-such-bucket/config.json", "NoSuchBucket")]
    )
    def test_a_missing_object_and_a_missing_bucket_have_different_codes(self, store, reader, path, code):
        assert reader.error(path)[:2] == (404, code)

    def test_an_address_with_a_version_is_one_of_an_unknown_api(self, own_client):
        assert "no API at" in own_client.error("GET", "/aiplatform/v1/projects")[1]

    @pytest.mark.parametrize(("content", "asked"), [(CONTENT, "bytes=1024-"), (b"", "bytes=0-")])
    def test_a_range_outside_the_object_is_416_with_its_size(self, store, reader, content, asked):
        store(content)
        assert reader.error(ADDRESS, Range=asked)[:2] == (416, "InvalidRange")
        assert reader.read(ADDRESS, Range=asked).headers["Content-Range"] == f"bytes */{len(content)}"

    def test_a_caller_without_the_permission_is_denied(self, store, reader, own_client, own_cloud):
        store()
        alice = Reader(own_cloud.base_url, own_client.as_caller(ALICE.removeprefix("user:")).token)
        status, code, details = alice.error(ADDRESS)
        assert (status, code) == (403, "AccessDenied")
        assert "storage.objects.get" in details

    def test_a_read_without_a_token_is_denied_and_one_with_a_bad_token_is_not_authenticated(self, store, own_cloud):
        store()
        assert Reader(own_cloud.base_url, "").error(ADDRESS)[:2] == (403, "AccessDenied")
        assert Reader(own_cloud.base_url, "bad").error(ADDRESS)[:2] == (401, "AuthenticationRequired")

    def test_a_condition_is_rejected_and_not_ignored(self, store, reader):
        store()
        assert reader.error(ADDRESS, x_goog_if_generation_match="1")[:2] == (501, "NotImplemented")
