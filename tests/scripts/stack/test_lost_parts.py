"""The server's image in its registry. tests/engine/losses.py has what else a stack can lose."""

from types import SimpleNamespace

import pytest
import requests

from gemma_serving.contracts.stack_facts import LostPart
from gemma_serving.contracts.three_answers import Present, Unknown
from gemma_serving.scripts.stack import lost_parts as module
from gemma_serving.scripts.stack.lost_parts import lost_parts
from tests.scripts.planted_states import service, stack_resource, state

IMAGE = f"us-east4-docker.pkg.dev/p/own/vllm@sha256:{'a' * 64}"
GONE = LostPart(f"Image {IMAGE} no longer exists, so no server can start from it.")


def answer(status):
    return SimpleNamespace(status_code=status, ok=status == 200)


@pytest.mark.parametrize(
    ("image", "registry", "found"),
    [
        (IMAGE, lambda *_: answer(200), Present([])),
        (IMAGE, lambda *_: answer(404), Present([GONE])),
        (IMAGE, lambda *_: answer(403), Unknown(f"image {IMAGE}: the registry returned HTTP 403")),
        (IMAGE, None, Unknown(f"image {IMAGE}: the registry gave no usable response (ConnectionError)")),
        ("vllm/vllm-openai@sha256:b", lambda *_: answer(404), Present([])),  # of Docker Hub: not looked at
    ],
)
def test_an_image_is_lost_if_artifact_registry_does_not_have_it(monkeypatch, image, registry, found):
    def away(*_):
        raise requests.ConnectionError

    monkeypatch.setattr(module, "connect", lambda *_: SimpleNamespace(session=None))
    monkeypatch.setattr(module, "ask_registry", registry or away)
    server = service()
    server["inputs"]["template"]["containers"] = [{"image": image}]
    assert lost_parts(state(stack_resource(), server)) == found
