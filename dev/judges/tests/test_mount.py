"""The judge of the mount, without gcsfuse: the options that it judges, and the proxy that counts reads."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from dev.judges.real.gcsfuse_program import message_of
from dev.judges.real.mount_stacks import option_sets, stacks
from dev.judges.real.throttled_store import ConnectionLimits, store
from gemma_serving.planning.question.recommendation import FUSE_MODES
from localcloud.services.run_mount_options import rejection

CONTENT = bytes(range(256)) * 4096
READERS = 3


class TestOptions:
    def test_each_stack_on_cloud_run_is_judged_in_each_mode_with_a_mount(self):
        judged = [(mode, stack) for (mode, _), names in option_sets().items() for stack in names]
        assert sorted(judged) == sorted((mode, stack) for mode in FUSE_MODES for stack in stacks())
        assert "l4-qat" in stacks()

    def test_none_is_one_that_gcsfuse_rejects(self):
        assert {options: rejection(options) for _, options in option_sets()} == {
            options: None for _, options in option_sets()
        }

    def test_gcsfuses_reason_is_found_between_the_entries_of_its_log(self):
        output = '{"severity":"INFO"}\nError: invalid config: two\nlines\n{"severity":"INFO"}\n'
        assert message_of(output) == "invalid config: two lines"


class _Upstream(BaseHTTPRequestHandler):
    """Sends the content, the caller's token in a header. Reads wait for each other, so they overlap."""

    together = threading.Barrier(READERS)

    def do_GET(self):
        if self.path.startswith("/bucket/"):
            self.together.wait(30)
        self.send_response(206)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.send_header("X-Token", self.headers.get("Authorization", ""))
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture
def cloud():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Upstream)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class TestThrottledStore:
    def test_reads_of_content_are_counted_and_those_of_metadata_are_not(self, cloud):
        with store(cloud, token="of-the-account") as proxy, ThreadPoolExecutor() as readers:
            requests.get(f"{proxy.url}/storage/storage/v1/b/bucket/o/name", timeout=30)
            answers = list(readers.map(lambda _: requests.get(f"{proxy.url}/bucket/name", timeout=30), range(READERS)))
        assert {answer.content for answer in answers} == {CONTENT}
        assert answers[0].headers["X-Token"] == "Bearer of-the-account"
        assert (proxy.reads.requests, proxy.reads.content_bytes) == (READERS, READERS * len(CONTENT))
        assert (proxy.reads.most, proxy.reads.now) == (READERS, 0)

    def test_a_connection_is_not_faster_than_its_network(self, cloud):
        network = ConnectionLimits(first_byte_s=0.05, bytes_per_s=len(CONTENT) / 0.1)
        with store(cloud, network=network) as proxy:
            began_s = time.monotonic()
            requests.get(f"{proxy.url}/storage/storage/v1/b/bucket/o/name?alt=media", timeout=30)
            took_s = time.monotonic() - began_s
        assert took_s >= 0.15
        assert proxy.reads.content_bytes == len(CONTENT)
