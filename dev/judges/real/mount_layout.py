"""Google's Storage Control API by gRPC, as far as gcsfuse asks it before a mount that fails: the bucket's layout, from the local cloud's answer."""

import urllib.error
import urllib.request
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import grpc

from dev.judges.real_vllm.server import DIRECT, HOST
from gemma_serving.contracts.fields import as_mapping, json_object

_METHOD: Final = "/google.storage.control.v2.StorageControl/GetStorageLayout"
_CODES: Final = {404: grpc.StatusCode.NOT_FOUND, 403: grpc.StatusCode.PERMISSION_DENIED}


class _Layouts(grpc.GenericRpcHandler):
    """Answers with the error of the local cloud's `storage.buckets.getStorageLayout`."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url, token

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:  # noqa: ANN401 - grpcio has no types
        """Return the handler of the one method."""
        if handler_call_details.method != _METHOD:
            return None
        return grpc.unary_unary_rpc_method_handler(self._answer)  # pyright: ignore[reportUnknownVariableType] - grpcio has no types

    def _answer(self, _request: bytes, context: Any) -> bytes:  # noqa: ANN401 - grpcio has no types
        asked = urllib.request.Request(self._url, headers={"Authorization": f"Bearer {self._token}"})  # noqa: S310 - the local cloud
        try:
            with DIRECT.open(asked, timeout=30):
                return b""
        except urllib.error.HTTPError as error:
            message = str(as_mapping(json_object(error.read().decode()).get("error")).get("message"))
            context.abort(_CODES.get(error.code, grpc.StatusCode.UNKNOWN), message)
            raise


@contextmanager
def layouts(cloud: str, bucket: str, token: str) -> Generator[str]:
    """Run the API for one bucket and caller during the block, and yield its address."""
    url = f"{cloud}/storage/storage/v1/b/{bucket}/storageLayout"
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    server.add_generic_rpc_handlers((_Layouts(url, token),))
    port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    try:
        yield f"http://{HOST}:{port}"
    finally:
        server.stop(None).wait()
