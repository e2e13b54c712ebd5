"""Who sent a request: the list of connections tells the user of each, and the headers tell a web page."""

import importlib
import os
import socket
import sys

import grpc
import grpc.aio
import pytest
from google.protobuf import empty_pb2

from localcloud import callers
from localcloud.callers import foreign_host, other_user
from localcloud.tests.plugins.harness import BareStore, Recorder, connected, run
from localcloud.tests.running import test_fronts

plugins = importlib.import_module("localcloud.plugins.serve")  # the package has a function of that name
ME = os.geteuid()
HEADLINE = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
CLIENT, SERVER = ("127.0.0.1", 50000), ("127.0.0.1", 8080)
IPV4 = "0100007F" if sys.byteorder == "little" else "7F000001"
IPV6 = "0000000000000000FFFF0000" + IPV4 if sys.byteorder == "little" else "00000000000000000000FFFF" + IPV4


def row(uid, *, state="01", local=f"{IPV4}:C350", remote=f"{IPV4}:1F90"):
    return f"   7: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 {uid:5d}        0 99 1 0 20 4 30 10 -1\n"


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Two lists of connections, for IPv4 and IPv6, that a test writes."""
    paths = (tmp_path / "tcp", tmp_path / "tcp6")
    monkeypatch.setattr(callers, "_TABLES", paths)

    def write(*rows, wide=()):
        paths[0].write_text(HEADLINE + "".join(rows))
        paths[1].write_text(HEADLINE + "".join(wide))

    return write


@pytest.mark.parametrize(
    ("rows", "other"),
    [
        ([row(ME)], False),
        ([row(0)], False),
        ([row(ME + 1)], True),
        ([row(ME, local=f"{IPV4}:1F90", remote=f"{IPV4}:C350"), row(ME + 1)], True),  # our own end does not count
        ([row(0, state="06")], True),  # closed by its user: the list shows root
        ([row(0, state="05")], True),
        ([], True),
    ],
)
def test_a_connection_belongs_to_the_user_in_the_systems_list(table, rows, other):
    table(*rows)
    assert other_user(CLIENT, SERVER) is other


def test_a_client_that_speaks_ipv6_is_found(table):
    table(wide=[row(ME + 1, local=f"{IPV6}:C350", remote=f"{IPV6}:1F90")])
    assert other_user(CLIENT, SERVER)
    table(wide=[row(ME, local=f"{IPV6}:C350", remote=f"{IPV6}:1F90")])
    assert not other_user(CLIENT, SERVER)


def test_a_system_without_the_list_knows_no_other_users(tmp_path, monkeypatch):
    monkeypatch.setattr(callers, "_TABLES", (tmp_path / "none", tmp_path / "none6"))
    assert not other_user(CLIENT, SERVER)


def test_a_connection_of_this_process_is_no_other_users():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        accepted, client = server.accept()
        with accepted:
            assert not other_user(client, server.getsockname())


@pytest.mark.parametrize(("user", "other"), [(ME, False), (0, False), (ME + 1, True)])
def test_what_the_kernel_says_counts_before_its_list(table, monkeypatch, user, other):
    table(row(ME) if other else row(ME + 1))
    monkeypatch.setattr(callers, "_user_of", lambda *_: user)
    assert other_user(CLIENT, SERVER) is other


@pytest.mark.parametrize(
    ("host", "foreign"),
    [
        ("127.0.0.1:8080", False),
        ("localhost:8080", False),
        ("[::1]:8080", False),
        ("LocalHost:8080", False),
        ("127.0.0.1", True),
        ("127.0.0.1:8081", True),
        ("127.0.0.1.evil.example:8080", True),
        ("evil.example:8080", True),
        ("", True),
        (None, True),
    ],
)
def test_only_loopback_names_with_the_own_port_are_no_foreign_hosts(host, foreign):
    assert foreign_host(host, address="127.0.0.1", port=8080) is foreign


def test_a_plugin_refuses_another_user(monkeypatch):
    async def scenario():
        async with plugins.serve("http://127.0.0.1:9", transport=Recorder(BareStore()), environment={}) as ports:
            async with connected(ports.gcp) as attached:
                await attached.configure(project="p1")
            monkeypatch.setattr(plugins, "other_user", lambda *_: True)
            refused = []
            for port in (ports.gcp, ports.docker):
                async with connected(port) as outsider:
                    for method in ("Cancel", "GetPluginInfo", "Configure", "Create", "Delete", "Read", "Invoke"):
                        with pytest.raises(grpc.aio.AioRpcError) as error:
                            await getattr(outsider.stub, method)(empty_pb2.Empty())
                        refused.append(error.value.code())
            return set(refused)

    assert run(scenario()) == {grpc.StatusCode.PERMISSION_DENIED}


def test_a_front_answers_under_its_own_name_only():
    async def scenario():
        async with test_fronts.world() as here:
            port = here.url.rpartition(":")[2]
            assert (await here.get("/x", headers={"Host": f"localhost:{port}"}))[0] == 200
            for host in ("rebound.evil.example", f"rebound.evil.example:{port}", "127.0.0.1:1"):
                assert (await here.get("/x", headers={"Host": host}))[0] == 404

    run(scenario())
