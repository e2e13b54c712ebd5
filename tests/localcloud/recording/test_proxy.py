"""The recorder takes the requests of its command only, passes everything on, and survives what breaks."""

import asyncio
import gzip
import json
import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
import requests

from localcloud.recording.endpoints import Endpoints, variables
from localcloud.recording.proxy import Proxy

TOKEN = {"Authorization": "Bearer a-token-of-the-command"}


class Google(BaseHTTPRequestHandler):
    """Answers with what it got, or as the path says."""

    protocol_version = "HTTP/1.1"

    def _answer(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(iter(self._chunk, b""))
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "/breaks" in self.path:
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        said = {
            "path": self.path,
            "bytes": len(body),
            "headers": {key.lower(): value for key, value in self.headers.items()},
        }
        answer = json.dumps(said).encode()
        self.send_response(200)
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            answer = gzip.compress(answer)
            self.send_header("Content-Encoding", "gzip")
        if "uploadType=resumable" in self.path:
            address = f"http://{self.headers['Host']}"
            self.send_header(
                "Location", f"{address}/storage/upload/storage/v1/b/x/o?uploadType=resumable&upload_id=u1234567"
            )
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _chunk(self):
        size = int(self.rfile.readline(), 16)
        data = self.rfile.read(size)
        self.rfile.readline()
        return data

    do_GET = do_POST = do_PUT = _answer  # noqa: N815 - names that http.server looks up

    def log_message(self, *_):
        """Print nothing."""


@contextmanager
def in_thread(proxy):
    """Run the recorder in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    opened = proxy.open()
    try:
        yield asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result(10)
    finally:
        asyncio.run_coroutine_threadsafe(opened.__aexit__(None, None, None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.fixture
def recorder():
    with ThreadingHTTPServer(("127.0.0.1", 0), Google) as google:
        threading.Thread(target=google.serve_forever, daemon=True).start()
        kept = Kept()
        url = f"http://127.0.0.1:{google.server_address[1]}"
        proxy = Proxy(endpoints=Endpoints.of({}, url), keep=kept.append, learn_token=lambda token: None)
        with in_thread(proxy) as base_url:
            yield base_url, kept, proxy
        google.shutdown()


class Kept(list):
    """The exchanges; one that was asked for is waited for, because the recorder keeps it after its last byte."""

    def __getitem__(self, number):
        end = time.monotonic() + 60
        while time.monotonic() < end and len(self) <= number:
            time.sleep(0.005)
        return super().__getitem__(number)


def root(base_url):
    return f"http://{urlsplit(base_url).netloc}"


class TestWhoIsLetIn:
    @pytest.mark.parametrize(
        ("path", "headers"),
        [
            ("/run/v2/projects/p", TOKEN),
            ("/not-the-secret/run/v2/projects/p", TOKEN),
            ("/upload/storage/v1/b/x/o", {"Authorization": "Bearer of-somebody-else"}),
            ("/upload/storage/v1/b/x/o", {}),
        ],
    )
    def test_a_request_without_the_secret_is_refused(self, recorder, path, headers):
        base_url, kept, proxy = recorder
        requests.get(f"{base_url}/run/v2/projects/p", headers=TOKEN, timeout=60).raise_for_status()
        answer = requests.get(root(base_url) + path, headers=headers, timeout=60)
        assert (answer.status_code, proxy.refused) == (403, 1)
        assert kept[0].status == 200
        assert len(kept) == 1

    @pytest.mark.parametrize(
        "headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Host": "127.0.0.1:1"}]
    )
    def test_a_request_of_a_web_page_is_refused(self, recorder, headers):
        base_url, kept, _ = recorder
        answer = requests.get(f"{base_url}/run/v2/projects/p", headers={**TOKEN, **headers}, timeout=60)
        assert (answer.status_code, kept) == (403, [])

    def test_an_upload_at_the_root_is_taken_with_a_token_of_the_command(self, recorder):
        base_url, kept, _ = recorder
        requests.get(f"{base_url}/run/v2/projects/p", headers=TOKEN, timeout=60).raise_for_status()
        answer = requests.post(
            f"{root(base_url)}/upload/storage/v1/b/x/o?uploadType=media", data=b"12", headers=TOKEN, timeout=60
        )
        assert answer.json()["path"] == "/storage/upload/storage/v1/b/x/o?uploadType=media"
        assert kept[1].path == "/storage/upload/storage/v1/b/x/o"

    def test_it_listens_on_the_loopback_address_only(self, recorder):
        base_url, _, _ = recorder
        assert urlsplit(base_url).hostname == "127.0.0.1"
        with socket.socket() as other:
            assert other.connect_ex(("127.0.0.2", urlsplit(base_url).port)) != 0


class TestPassing:
    def test_path_query_headers_and_body_arrive_as_they_were_sent(self, recorder):
        base_url, kept, _ = recorder
        headers = {**TOKEN, "X-Goog-User-Project": "p", "Accept-Encoding": "identity", "Connection": "keep-alive"}
        path = "/iam/v1/projects/p/serviceAccounts/a%40b.example?alt=json&x=%2F&x=2"
        said = requests.post(base_url + path, json={"a": 1}, headers=headers, timeout=60).json()
        assert said["path"] == path
        assert said["bytes"] == 8
        assert said["headers"]["authorization"] == TOKEN["Authorization"]
        assert said["headers"]["x-goog-user-project"] == "p"
        assert kept[0].query == {"alt": "json", "x": ["/", "2"]}
        assert kept[0].request == {"a": 1}
        assert kept[0].response == said

    def test_a_compressed_answer_stays_compressed_and_is_kept_in_clear(self, recorder):
        base_url, kept, _ = recorder
        with requests.get(
            f"{base_url}/run/v2/x", headers={**TOKEN, "Accept-Encoding": "gzip"}, stream=True, timeout=60
        ) as answer:
            assert json.loads(gzip.decompress(answer.raw.read())) == kept[0].response

    def test_a_large_body_passes_in_pieces_and_is_not_kept(self, recorder):
        base_url, kept, _ = recorder
        pieces = (b"x" * (1 << 20) for _ in range(20))
        said = requests.put(f"{base_url}/storage/storage/v1/b/x", data=pieces, headers=TOKEN, timeout=30).json()
        assert said["bytes"] == 20 << 20
        assert (kept[0].request, kept[0].request_content.bytes) == (None, 20 << 20)

    def test_the_session_of_an_upload_leads_back_to_the_recorder(self, recorder):
        base_url, kept, _ = recorder
        path = "/storage/upload/storage/v1/b/x/o?uploadType=resumable"
        location = requests.post(base_url + path, json={"name": "o"}, headers=TOKEN, timeout=60).headers["Location"]
        assert location.startswith(f"{base_url}/storage/upload/storage/v1/b/x/o?")
        requests.put(
            location, data=b"secret content", headers={**TOKEN, "Content-Range": "bytes 0-13/14"}, timeout=60
        ).raise_for_status()
        assert kept[0].request == {"name": "o"}
        assert kept[0].location.endswith("upload_id=u1234567")
        assert (kept[1].request, kept[1].range) == (None, "bytes 0-13/14")

    def test_a_connection_that_breaks_breaks_for_the_command_too(self, recorder):
        base_url, kept, _ = recorder
        with pytest.raises(requests.ConnectionError):
            requests.get(f"{base_url}/run/v2/breaks", headers=TOKEN, timeout=60)
        assert (kept[0].status, kept[0].response) == (0, None)


class TestEndpoints:
    def test_without_other_variables_it_is_google(self):
        endpoints = Endpoints.of({}, None)
        assert endpoints.url("/run/v2/projects/p") == "https://run.googleapis.com/v2/projects/p"
        assert endpoints.url("/storage/upload/storage/v1/b") == "https://storage.googleapis.com/upload/storage/v1/b"
        assert endpoints.url("/nothing/v1") is None

    def test_an_endpoint_of_the_environment_is_the_real_one(self):
        given = {
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": "https://storage-x.p.googleapis.com/storage/v1/",
            "GOOGLE_COMPUTE_CUSTOM_ENDPOINT": "https://compute-x.p.googleapis.com/compute/beta/",
        }
        endpoints = Endpoints.of(given, None)
        assert endpoints.url("/storage/storage/v1/b/x") == "https://storage-x.p.googleapis.com/storage/v1/b/x"
        assert (
            endpoints.url("/compute/compute/v1/projects/p")
            == "https://compute-x.p.googleapis.com/compute/v1/projects/p"
        )
        assert endpoints.url("/run/v2/x") == "https://run.googleapis.com/v2/x"

    def test_every_endpoint_variable_of_the_local_cloud_leads_to_the_recorder(self):
        found = variables("http://127.0.0.1:1/s", {})
        assert found["GOOGLE_TPU_V2_CUSTOM_ENDPOINT"] == "http://127.0.0.1:1/s/tpu/v2alpha1/"
        assert found["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"] == "http://127.0.0.1:1/s/tpu/"
        assert found["NO_PROXY"] == "127.0.0.1,localhost"
        assert len(found) > 20
