"""The guard that the agent puts before vLLM, as middleware of the simulated server."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud.tests.running.running_server import ask, server

MODEL = "simulated/tiny"
ROOT = Path(__file__).resolve().parents[2]
BEARER = {"Authorization": "Bearer key"}
ORIGIN = {"Origin": "https://evil.example"}


@contextlib.contextmanager
def guarded(folder: Path, key: str = "key") -> Iterator[str]:
    shutil.copy(ROOT / "vm_agent" / "path_guard.py", folder / "guard_of_the_test.py")
    words = ("vllm", "serve", MODEL, "--middleware=guard_of_the_test.PathGuard")
    with server(words, VLLM_API_KEY=key, VLLM_SIM_PYTHONPATH=str(folder)) as url:
        yield url


def test_the_middleware_is_asked_first(tmp_path: Path, subtests: pytest.Subtests) -> None:
    with guarded(tmp_path) as url:
        posted = {"prompt": "x", "max_tokens": 1}
        for path, body in {"/invocations": posted, "/tokenize": posted, "/metrics": None, "/v1/models": None, "/nowhere": None}.items():  # fmt: skip
            with subtests.test(path):
                refused = ask(url + path, body, headers=ORIGIN)
                assert (refused.status, refused.text) == (401, '{"error":"Unauthorized"}')
                assert "access-control-allow-origin" not in refused.headers
                assert ask(url + path, body, headers=BEARER).status == (404 if path == "/nowhere" else 200)
        assert ask(f"{url}/health").status == 200


def test_a_guard_without_a_key_serves_nothing(tmp_path: Path) -> None:
    with guarded(tmp_path, key="") as url:
        assert ask(f"{url}/health").status == 500
