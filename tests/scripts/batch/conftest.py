"""A server that answers only as often as a test allows, in threads of the test."""

import contextlib
import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

UNLIMITED = 10**9


class Model:
    """A model that echoes its prompt. `answers` is how many more responses it gives; further requests wait."""

    def __init__(self):
        self.received = Counter()
        self.answers = UNLIMITED
        self.replies = {}
        """Replies to the next requests of a prompt, each a status, headers and a body, or None to close the connection."""
        self.tokens = None
        self.most_at_once = self.at_once = 0
        self.change = threading.Condition()
        self.epoch = 0
        self.url = ""

    def allow(self, answers):
        with self.change:
            self.answers = answers
            self.change.notify_all()

    def forget_clients(self):
        """Give no response to the requests that wait: their clients were killed."""
        with self.change:
            self.epoch += 1
            self.change.notify_all()
            assert self.change.wait_for(lambda: self.at_once == 0, 120)

    def reply(self, prompt):
        """Return the reply to a prompt, as soon as one is allowed."""
        with self.change:
            self.received[prompt] += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            epoch = self.epoch
            self.change.notify_all()
            self.change.wait_for(lambda: self.answers > 0 or self.epoch != epoch)
            self.at_once -= 1
            self.change.notify_all()
            if self.epoch != epoch:
                return None
            self.answers -= 1
            planned = self.replies.get(prompt) or self.replies.get("*")
            if planned:
                return planned.pop(0) if prompt in self.replies else planned[0]
        usage = {"prompt_tokens": 3, "completion_tokens": 7}
        return 200, {}, {"id": f"chat-{prompt}", "choices": [{"message": {"content": prompt}}], "usage": usage}


def handler_of(model):  # noqa: C901 - the methods of one small class
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            if self.is_admitted():
                self.answer(200, {}, {"data": [{"id": "gemma", "owned_by": "vllm-simulated"}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.is_admitted():
                found = model.reply(body.get("prompt") or body["messages"][-1]["content"])
                if found is None:
                    self.close_connection = True
                else:
                    self.answer(*found)

        def is_admitted(self):
            given = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if model.tokens is None or given in model.tokens:
                return True
            self.answer(401, {}, {"error": {"message": "The token has expired."}})
            return False

        def answer(self, status, headers, body):
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, text in {**headers, "x-simulated": "test", "Content-Length": str(len(raw))}.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_):
            pass

    return Handler


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """A client that was killed is no error."""


@pytest.fixture
def start_model():
    with contextlib.ExitStack() as stack:

        def start():
            found = Model()
            server = QuietServer(("127.0.0.1", 0), handler_of(found))
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            stack.callback(found.forget_clients)
            found.url = f"http://127.0.0.1:{server.server_address[1]}"
            return found

        yield start


@pytest.fixture
def model(start_model):
    return start_model()


def until(came_about):
    end_s = time.monotonic() + 120
    while not came_about():
        assert time.monotonic() < end_s
        time.sleep(0.02)
