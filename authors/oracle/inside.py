# pyright: basic, reportMissingImports=false
# ruff: noqa: PLC0415, SLF001 - the packages are the oracle's, and take seconds to load; the loader's choice has no public name
"""Determine which media vLLM's code fetches and which weights it opens. Run by the oracle's Python, which has vLLM's packages.

`python inside.py FOLDER` prints one JSON object: for each rule and URL vLLM's result and the requests seen by a listener on
127.0.0.1; for each load format the files of FOLDER that vLLM would open. The oracle's model serves only text, and its server rejects a picture
before it reads a URL, so the rule is tested here.
"""

import asyncio
import base64
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = "127.0.0.1"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
FORMATS = ("auto", "safetensors")
RULES = {"none.invalid": ["none.invalid"], "the listener": [HOST], "every domain": None}


class Listener(BaseHTTPRequestHandler):
    """Handler that returns a picture. /moved redirects to /inner."""

    seen: list[str] = []  # noqa: RUF012 - of all requests

    def do_GET(self) -> None:
        """Answer."""
        self.seen.append(self.path)
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/inner")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = base64.b64decode(PIXEL)
        self.send_response(200)
        self.send_header("Content-Type", "image/png")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: object) -> None:
        """Print nothing."""


async def answers(url: str) -> dict[str, dict[str, dict[str, object]]]:
    """Return vLLM's result for each rule and each URL."""
    from vllm.multimodal.media.connector import MediaConnector

    urls = {
        "http": f"{url}/picture.png",
        "redirect": f"{url}/moved",
        "data": f"data:image/png;base64,{PIXEL}",
        "file": "file:///etc/hostname",
    }
    found: dict[str, dict[str, dict[str, object]]] = {}
    for rule, domains in RULES.items():
        connector = MediaConnector(allowed_media_domains=domains)
        for name, asked in urls.items():
            before = len(Listener.seen)
            try:
                await connector.fetch_image_async(asked)
                answer = "a picture"
            except Exception as error:  # noqa: BLE001 - any exception is a result
                answer = f"{type(error).__name__}: {error}"[:200]
            found.setdefault(rule, {})[name] = {"answer": answer, "requests": Listener.seen[before:]}
    return found


def opened(folder: str) -> dict[str, str]:
    """Return for each load format the suffix of the files that vLLM would open, or its error."""
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    found: dict[str, str] = {}
    for load_format in FORMATS:
        loader = DefaultModelLoader(LoadConfig(load_format=load_format))
        try:
            _, files, *_ = loader._prepare_weights(folder, None, None, True, None)
            found[load_format] = " ".join(sorted({file.rpartition(".")[2] for file in files}))
        except RuntimeError as error:
            found[load_format] = f"RuntimeError: {error}".partition(" with ")[0]
    return found


def main() -> None:
    """Listen, run the checks, print."""
    server = ThreadingHTTPServer((HOST, 0), Listener)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    media = asyncio.run(answers(f"http://{HOST}:{server.server_port}"))
    print(json.dumps({"media": media, "weights": opened(sys.argv[1])}))


if __name__ == "__main__":
    main()
