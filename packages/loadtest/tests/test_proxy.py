"""Control calls and load use the same proxy of the environment, or none."""

import pytest

from loadtest.client.proxy import HttpProxy, proxy_of
from loadtest.errors import SweepError
from loadtest.store import read_run
from loadtest.tests.small_proxy import small_proxy
from loadtest.tests.test_sweep_runs import bench, only
from loadtest.tests.test_wire_tls import certificate, load_over_tls

__all__ = ["certificate"]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def test_control_and_load_go_through_the_same_proxy(server, tmp_path, monkeypatch):
    port = server.url.rsplit(":", 1)[1]
    with small_proxy() as proxy:
        monkeypatch.setenv("http_proxy", f"http://me:s%40crets@127.0.0.1:{proxy.port}")
        _, results = bench(f"http://server.test:{port}", tmp_path)
    assert (only(results)["completed"], only(results)["failed"]) == (12, 0)
    assert f"GET http://server.test:{port}/v1/models" in proxy.asked
    assert proxy.asked.count(f"POST http://server.test:{port}/v1/chat/completions") == 12
    assert proxy.authorizations == {"Basic bWU6c0BjcmV0cw=="}
    run = read_run(tmp_path)
    assert f"through the proxy 127.0.0.1:{proxy.port}" in run["notes"][0]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"crets" in path.read_bytes()]


def test_names_of_no_proxy_and_this_machine_are_reached_directly(server, tmp_path, monkeypatch):
    with small_proxy() as proxy:
        monkeypatch.setenv("http_proxy", f"127.0.0.1:{proxy.port}")
        bench(server.url, tmp_path)
        assert proxy.asked == []
        assert proxy_of("http://other.test") == HttpProxy(host="127.0.0.1", port=proxy.port)
        monkeypatch.setenv("no_proxy", "other.test")
        assert proxy_of("http://other.test") is None
    assert proxy_of("https://server.test") is None


def test_a_proxy_that_cannot_be_used_is_refused_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("https_proxy", "socks5://127.0.0.1:1080")
    with pytest.raises(SweepError, match=r"HTTPS_PROXY has the proxy type 'socks5'\. Set it to http://HOST:PORT"):
        bench("https://server.test", tmp_path)


def test_a_server_behind_tls_is_reached_by_connect(certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with small_proxy() as proxy:
        result = load_over_tls(certificate, HttpProxy(host="127.0.0.1", port=proxy.port, authorization="Basic eA=="))
    assert [record.error for record in result.records] == [None] * 20
    assert {text.rsplit(":", 1)[0] for text in proxy.asked} == {"CONNECT 127.0.0.1"}
    assert proxy.authorizations == {"Basic eA=="}


def test_a_proxy_that_refuses_is_named(certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with small_proxy(refuses=True) as proxy:
        result = load_over_tls(certificate, HttpProxy(host="127.0.0.1", port=proxy.port))
    assert {record.error for record in result.records} == {"connect"}
    assert f"the proxy 127.0.0.1:{proxy.port} returned 403 Forbidden for CONNECT" in result.records[0].error_detail
