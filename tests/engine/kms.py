"""A stand-in for the part of Cloud KMS that the engine calls: Encrypt and Decrypt by gRPC over TLS.

No variable of the engine names another address than cloudkms.googleapis.com. Its gRPC library honors HTTPS_PROXY, so that a proxy on loopback
can lead each connection here; SSL_CERT_FILE makes it trust the certificate. The messages are those of google/cloud/kms/v1/service.proto:
in EncryptRequest and DecryptRequest the first field is the name and the second the data, as in EncryptResponse and in Any; DecryptResponse begins
with the data, as BytesValue. The token of a caller names what it may do.
"""

import contextlib
import datetime as dt
import socket
import threading
from concurrent import futures

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from google.protobuf.any_pb2 import Any as NameAndData
from google.protobuf.wrappers_pb2 import BytesValue as Data

HOST = "cloudkms.googleapis.com"
_MARK = b"encrypted:"


class Kms(grpc.GenericRpcHandler):
    """The service. `calls` are the verbs that were called, with the key."""

    def __init__(self):
        self.calls = []

    def service(self, handler_call_details):
        verb = handler_call_details.method.rpartition("/")[2]
        answer = {"Encrypt": self._encrypt, "Decrypt": self._decrypt}.get(verb)
        return grpc.unary_unary_rpc_method_handler(answer) if answer else None

    def _encrypt(self, request, context):
        asked = self._allowed("Encrypt", request, context)
        return NameAndData(type_url=asked.type_url, value=_MARK + asked.value[::-1]).SerializeToString()

    def _decrypt(self, request, context):
        data = self._allowed("Decrypt", request, context).value
        assert data.startswith(_MARK)
        return Data(value=data.removeprefix(_MARK)[::-1]).SerializeToString()

    def _allowed(self, verb, request, context):
        asked = NameAndData.FromString(request)
        name = asked.type_url
        self.calls.append((verb, name))
        token = dict(context.invocation_metadata()).get("authorization", "")
        if f"may-{verb}" not in token:
            words = f"Permission 'cloudkms.cryptoKeyVersions.useTo{verb}' denied on resource '{name}' (or it may not exist)."
            context.abort(grpc.StatusCode.PERMISSION_DENIED, words)
        return asked


@contextlib.contextmanager
def served(folder):
    """Serve Cloud KMS, and yield the service and the environment that leads an engine to it."""
    key, certificate = _certificate()
    authority = folder / "authority.pem"
    authority.write_bytes(certificate)
    service = Kms()
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[service])
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
    server.start()
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        threading.Thread(target=_lead, args=(proxy, port), daemon=True).start()
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        try:
            yield service, {"HTTPS_PROXY": url, "NO_PROXY": "", "no_proxy": "", "SSL_CERT_FILE": str(authority)}
        finally:
            server.stop(None).wait()


def _lead(proxy, port):
    """Answer each CONNECT to Cloud KMS with a connection to the server."""
    while True:
        try:
            client, _ = proxy.accept()
        except OSError:  # closed
            return
        threading.Thread(target=_connect, args=(client, port), daemon=True).start()


def _connect(client, port):
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        got = client.recv(1)
        if not got:
            return
        head += got
    if not head.startswith(f"CONNECT {HOST}:443 ".encode()):
        client.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
        client.close()
        return
    server = socket.create_connection(("127.0.0.1", port))
    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    threading.Thread(target=_copy, args=(server, client), daemon=True).start()
    _copy(client, server)


def _copy(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    target.close()


def _certificate():
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private, builder.sign(key, hashes.SHA256()).public_bytes(pem)
