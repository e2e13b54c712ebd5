"""A server that knows the questions: right answers, unless a test plants others."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from scripts.quality.items import all_items


def right_answer(item):
    """The message that the judge of an item must accept."""
    if item.kind == "tools":
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [tool_call(item, one) for one in item.expected["calls"]],
        }
    if item.kind == "json":
        return {"role": "assistant", "content": json.dumps(item.expected["value"])}
    if item.kind == "retrieval":
        return {"role": "assistant", "content": item.expected["code"]}
    value = item.expected.get("number", item.expected.get("text", [""])[0])
    return {"role": "assistant", "content": f"A few steps.\n\nAnswer: {value}"}


def tool_call(item, call):
    declared = {one["function"]["name"]: one["function"] for one in item.extra["tools"]}[call["name"]]
    free = {name: "Some text." for name in declared["parameters"]["required"] if name not in call["arguments"]}
    function = {"name": call["name"], "arguments": json.dumps(call["arguments"] | free)}
    return {"id": "call-1", "type": "function", "function": function}


class KnowingServer:
    """`answers`: a message, a status, or "break" by id of a question. `refuses`: a status and message by field of a request."""

    def __init__(self):
        self.answers, self.refuses, self.asked, self.seen = {}, {}, [], []
        self.max_model_len = 4096
        self.simulated = False
        self.message = "planted"
        self.pause_s = 0.0
        self.by_prompt = {one.prompt: one for one in all_items()}
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def reply(self, status, body):
                raw = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(raw)))
                if server.simulated:
                    self.send_header("x-simulated", "planted")
                self.end_headers()
                self.wfile.write(raw)

            def do_GET(self):
                limits = {"gemma": server.max_model_len, "adapter": None}
                rows = [{"id": name, "max_model_len": limit, "owned_by": "vllm"} for name, limit in limits.items()]
                bodies = {"/v1/models": {"data": rows}, "/version": {"version": "0.28.0"}}
                self.reply(200 if self.path in bodies else 404, bodies.get(self.path, {}))

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.path != "/v1/chat/completions":
                    return self.reply(404, {"message": "no such path"})
                item = server.by_prompt[body["messages"][0]["content"]]
                time.sleep(server.pause_s)
                server.asked.append(item.id)
                server.seen.append(body)
                refused = next((server.refuses[field] for field in server.refuses if field in body), None)
                answer = refused[0] if refused else server.answers.get(item.id, right_answer(item))
                if answer == "break":
                    return self.connection.close()
                if isinstance(answer, int):
                    return self.reply(answer, {"error": {"message": refused[1] if refused else server.message}})
                choice = {"index": 0, "message": answer, "finish_reason": "stop"}
                usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
                return self.reply(200, {"choices": [choice], "usage": usage})

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self):
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def knowing():
    server = KnowingServer()
    yield server
    server.close()
