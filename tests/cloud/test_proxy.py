"""A corporate proxy: calls to Google, to the hub and of the provider go through HTTPS_PROXY, as docs/faq.md states.

The load tester's are in packages/loadtest/tests/test_proxy.py.
"""

import asyncio

import huggingface_hub
import pytest
import requests

from gcp_tpu_provider.errors import NoAnswerError
from gcp_tpu_provider.http_transport import Credentials, HttpTpuTransport, Pacing
from gemma_serving.cloud import google_session
from gemma_serving.cloud.hub import main_commit
from gemma_serving.contracts.three_answers import Unknown
from loadtest.tests.small_proxy import small_proxy


@pytest.fixture
def asked(monkeypatch):
    """Return the first lines of what a proxy was asked, which refuses each connection."""
    for name in ("ALL_PROXY", "all_proxy", "https_proxy", "NO_PROXY", "no_proxy", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with small_proxy(refuses=True) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        yield proxy.lines


def test_calls_of_google_go_through_the_proxy(asked, monkeypatch):
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "a-token")
    session = google_session.open_session("p")
    with pytest.raises(requests.exceptions.ProxyError):
        google_session.sent(session, "GET", "https://run.googleapis.com/v2/projects/p")
    assert set(asked) == {"CONNECT run.googleapis.com:443 HTTP/1.0"}


def test_calls_of_the_hub_go_through_the_proxy(asked):
    huggingface_hub.close_session()  # it read the variables of its first call
    assert isinstance(main_commit("org/model", token=False), Unknown)
    assert set(asked) == {"CONNECT huggingface.co:443 HTTP/1.1"}
    huggingface_hub.close_session()


def test_calls_of_the_provider_go_through_the_proxy(asked, monkeypatch):
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "a-token")
    transport = HttpTpuTransport(pacing=Pacing(retry_budget_s=0, first_contact_s=0), credentials=Credentials())

    async def call():
        try:
            await transport.call("GET", "v2alpha1/projects/p/locations")
        finally:
            await transport.close()

    with pytest.raises(NoAnswerError, match="403"):
        asyncio.run(call())
    assert set(asked) == {"CONNECT tpu.googleapis.com:443 HTTP/1.1"}
