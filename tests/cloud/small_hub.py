"""A small hub: model_info, and files that it redirects to a storage which answers ranges, as the real one does."""

import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" + "0" * 34
LARGE_BYTES = 3000
"""Files of this size and more are large: the hub states their SHA-256, and of the others Git's id."""


@dataclass
class SmallHub:
    """Files by name, and what was asked."""

    files: Mapping[str, bytes]
    url: str = ""
    asked: list = field(default_factory=list)
    """(host part, name, Range, whether there was a token) of each request for a file."""
    damaged: set = field(default_factory=set)
    """Names whose bytes arrive changed."""
    refusals: list = field(default_factory=list)
    """HTTP statuses of the next requests to the storage."""
    ignores_ranges: bool = False
    model_refusal: tuple[int, str] | None = None
    """HTTP status and `X-Error-Code` that the question about the model is answered with."""

    def siblings(self):
        for name, content in self.files.items():
            blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()
            entry = {"rfilename": name, "size": len(content), "blobId": blob}
            if len(content) >= LARGE_BYTES:
                sha256 = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 130}
            yield entry


@contextlib.contextmanager
def small_hub(files: Mapping[str, bytes], model: str = "org/model") -> Iterator[SmallHub]:  # noqa: C901 - one handler
    """Run a hub with one model."""
    hub = SmallHub(files)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_arguments):
            """Nothing is printed."""

        def do_GET(self):
            path = self.path.partition("?")[0]
            token = self.headers.get("Authorization") is not None
            if path.startswith(f"/api/models/{model}") and hub.model_refusal is not None:
                status, code = hub.model_refusal
                return self.answer(status, b"{}", {"X-Error-Code": code} if code else {})
            if path.startswith(f"/api/models/{model}"):
                document = {"id": model, "sha": COMMIT, "siblings": list(hub.siblings())}
                return self.answer(200, json.dumps(document).encode(), {"Content-Type": "application/json"})
            if path.startswith(f"/{model}/resolve/{COMMIT}/"):
                name = path.partition(f"{COMMIT}/")[2]
                hub.asked.append(("hub", name, self.headers.get("Range"), token))
                # Another host name, so that the client has to keep its token.
                there = hub.url.replace("127.0.0.1", "localhost")
                return self.answer(302, b"", {"Location": f"{there}/storage/{name}?signed=1"})
            if path.startswith("/storage/"):
                return self.storage(path.removeprefix("/storage/"), token)
            return self.answer(404, b"{}", {})

        def storage(self, name, token):
            wanted = self.headers.get("Range") or ""
            hub.asked.append(("storage", name, wanted, token))
            if hub.refusals:
                return self.answer(hub.refusals.pop(0), b"", {})
            content = hub.files[name]
            if name in hub.damaged:
                content = bytes([content[0] ^ 1]) + content[1:]
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted)
            if found is None or hub.ignores_ranges:
                return self.answer(200, content, {})
            first, last = int(found[1]), min(int(found[2]), len(content) - 1)
            return self.answer(
                206, content[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
            )

        def answer(self, status, body, headers):
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        # A download that loses its server retries for minutes and closes the client that all downloads share: the next test's request would fail.
        until_s = time.monotonic() + 10
        for call in threading.enumerate():
            if call.name.startswith("call-"):  # contracts.parallel
                call.join(max(until_s - time.monotonic(), 0))
        server.shutdown()
        server.server_close()
        thread.join(20)
