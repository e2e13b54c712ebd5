"""The load generator over TLS: Cloud Run is reached by nothing else."""

import asyncio
import datetime as dt
import ipaddress
import json
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from loadtest.client.wire import now_s
from loadtest.generator.load import LoadGenerator
from loadtest.tests.virtual_time import share_of


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(pem + built.public_bytes(serialization.Encoding.PEM))
    return path


async def answer(reader, writer):
    """Answers every request of a connection with a stream of three tokens in one long chunk and many short ones."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            break
        length = int(
            next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")).split(b":")[1]
        )
        await reader.readexactly(length)
        token = {"choices": [{"delta": {"content": "x" * 100_000}, "finish_reason": None}]}
        events = [token, token, {"choices": [{"delta": {"content": "y"}, "finish_reason": "length"}]}]
        events.append({"choices": [], "usage": {"prompt_tokens": 32, "completion_tokens": 3}})
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for event in events:
            data = b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        writer.write(b"0\r\n\r\n")
        await writer.drain()
    writer.close()


def load_over_tls(certificate, proxy=None):
    async def run():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            share = share_of(
                url=url,
                body={"model": "m", "max_tokens": 3},
                requests=20,
                stall_timeout_s=60.0,
                proxy=proxy,
                headers={"Authorization": "Bearer t"},
            )
            generator = LoadGenerator(share, asyncio.get_running_loop())
            await generator.prepare()
            return await generator.run(now_s())

    return asyncio.run(run())


def test_streams_over_tls_are_read_whole(certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    result = load_over_tls(certificate)
    assert [record.error for record in result.records] == [None] * 20
    assert {len(record.times_s) for record in result.records} == {3}
    assert result.stale_retries == 0


def test_a_certificate_that_nobody_vouches_for_is_refused(certificate, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    result = load_over_tls(certificate)
    assert {record.error for record in result.records} == {"connect"}
    assert "certificate verify failed" in result.records[0].error_detail
    assert result.gave_up == "connect"
