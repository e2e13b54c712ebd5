"""Bodies and names that no Google client sends: each is rejected in Google's format, and none causes an internal error of the local cloud."""

import gc
import gzip
import hashlib
import http.client
import json
import resource
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

import pytest

from localcloud.rest.bodies import DEEPEST, LONGEST_BYTES
from localcloud.tests import idle_cloud

LONG = b'{"a": "' + b"x" * LONGEST_BYTES + b'"}'
GZIP = {"Content-Encoding": "gzip"}
SECRETS = "/secretmanager/v1/projects/local-project/secrets?secretId=one"
NETWORKS = "/compute/compute/v1/projects/local-project/global/networks"
BUCKETS = "/storage/storage/v1/b?project=local-project"
OBJECTS = "/upload/storage/v1/b/thing/o"
JSON_ROUTES = {
    SECRETS: 400,
    NETWORKS: 413,
    BUCKETS: 413,
    "/admin/advance": 400,
    "/admin/images": 400,
}
"""Routes that read JSON -> the status of a body that is too long."""


@pytest.fixture(scope="module")
def cloud() -> Iterator[idle_cloud.Started]:
    with idle_cloud.start() as started:
        sent = send(started, "POST", BUCKETS, json.dumps({"name": "thing", "location": "US"}).encode())
        assert sent[0] == 200, sent
        yield started


def send(cloud: idle_cloud.Started, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    address = urlsplit(cloud.base_url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    given = {"Content-Type": "application/json"}
    if not path.startswith("/hub/"):
        given["Authorization"] = f"Bearer {cloud.token}"
    try:
        connection.request(method, path, body, given | {key.replace("_", "-"): value for key, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def refused(answer: tuple[int, bytes], status: int) -> str:
    """Return the message of a refusal in Google's format."""
    assert answer[0] == status, answer
    error = json.loads(answer[1])["error"]
    if isinstance(error, str):  # the hub's format
        return error
    assert error["code"] == status
    assert "local cloud itself" not in error["message"]
    return error["message"]


def test_a_body_beyond_googles_limit_is_refused_on_every_route(cloud: idle_cloud.Started):
    found = dict[str, set[str]]()
    for path, status in JSON_ROUTES.items():
        message = refused(send(cloud, "POST", path, LONG), status)
        bomb = refused(send(cloud, "POST", path, gzip.compress(LONG), **GZIP), status)
        found[path] = {message, bomb}
        assert found[path] == {f"Request payload size exceeds the limit: {LONGEST_BYTES} bytes."}


@pytest.fixture
def without_collection() -> Iterator[None]:
    """Collect no garbage while a deeply nested body is read: finalizers of other tests would fail at the deepest level."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collection")
def test_a_body_that_cannot_be_read_is_refused_on_every_route(cloud: idle_cloud.Started):
    bad = {
        "deep": b"[" * 200_000 + b"]" * 200_000,
        "as deep as the parser goes": b'{"a":' * 900 + b"1" + b"}" * 900,
        "one level too deep": b'{"a":' * (DEEPEST + 1) + b"1" + b"}" * (DEEPEST + 1),
        "not JSON": b"{",
        "not UTF-8": b'{"a": "\xff"}',
        "no Unicode": b'{"name": "\\ud800"}',
        "no number": b'{"a": NaN}',
        "a number without an end": b'{"a": ' + b"9" * 5000 + b"}",
        "no object": b"[1]",
    }
    wrong: list[tuple[str, str, int, bytes]] = []
    for path in JSON_ROUTES:
        for what, body in bad.items():
            answer = send(cloud, "POST", path, body)
            try:
                refused(answer, 400)
            except (AssertionError, ValueError, KeyError):
                wrong.append((path, what, answer[0], answer[1][:200]))
        answer = send(cloud, "POST", path, b"no gzip", **GZIP)
        try:
            refused(answer, 400)
        except (AssertionError, ValueError, KeyError):
            wrong.append((path, "no gzip", answer[0], answer[1][:200]))
    assert wrong == []


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "a\rb", ".", "..", ".well-known/acme-challenge/x", "x" * 1025, ""])
def test_a_name_that_no_object_can_have_is_refused_before_its_content(cloud: idle_cloud.Started, name: str):
    refused(send(cloud, "POST", f"{OBJECTS}?uploadType=media&name={quote(name, safe='')}", b"{}"), 400)
    document = json.dumps({"name": name}).encode()
    body = b"--x\r\nContent-Type: application/json\r\n\r\n" + document + b"\r\n--x\r\n\r\ncontent\r\n--x--"
    answer = send(cloud, "POST", f"{OBJECTS}?uploadType=multipart", body, Content_Type="multipart/related; boundary=x")
    refused(answer, 400)
    listed = json.loads(send(cloud, "GET", "/storage/storage/v1/b/thing/o")[1])
    assert listed.get("items", []) == []


@pytest.mark.parametrize("kind", ["media", "multipart"])
def test_content_beyond_the_limit_is_an_object_and_takes_no_memory(cloud: idle_cloud.Started, kind: str):
    """The whole body is six times the maximum of a JSON body. The client's own copy of it is counted before."""
    content = bytes(range(256)) * (6 * LONGEST_BYTES // 256)
    path, body, media = f"{OBJECTS}?uploadType={kind}&name=large", content, "application/octet-stream"
    if kind == "multipart":
        head = (
            b'--x\r\nContent-Type: application/json\r\n\r\n{"name": "large"}\r\n--x\r\nContent-Type: text/plain\r\n\r\n'
        )
        body, media = head + content + b"\r\n--x--\r\n", "multipart/related; boundary=x"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status, text = send(cloud, "POST", path, body, Content_Type=media)
    assert status == 200, text
    more_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert more_bytes < len(content) // 2, "the server streams it to the disk"
    status, read = send(cloud, "GET", "/download/storage/v1/b/thing/o/large?alt=media")
    assert (status, hashlib.sha256(read).digest()) == (200, hashlib.sha256(content).digest())
    assert send(cloud, "DELETE", "/storage/storage/v1/b/thing/o/large")[0] == 204


def test_multipart_bodies_that_are_not_two_parts_are_refused(cloud: idle_cloud.Started):
    media = {"Content_Type": "multipart/related; boundary=x"}
    for body in (
        b"",
        b"--x",
        b"--x--",
        b"--x\n\n{}\n--x--",
        b"--x\n\n{}\n--x\n\na\n--x\n\nb\n--x--",
        b"--x\n" + b"a" * 20_000 + b"\n--x\n\n--x--",
    ):
        refused(send(cloud, "POST", f"{OBJECTS}?uploadType=multipart&name=a", body, **media), 400)
    refused(send(cloud, "POST", f"{OBJECTS}?uploadType=media&name=a", b"no gzip", **GZIP), 400)
    assert list((cloud.state / "objects").iterdir()) == [], "nothing of a refused upload is left"
