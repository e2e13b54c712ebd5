"""Cloud Storage's XML API: reads of objects, `GET /BUCKET/OBJECT`, which gcsfuse and Google's Go client send for content.

No discovery document describes this API. A read is answered as `storage.objects.get` with alt=media, with the same permission, state and counts.
Only the form of its errors is its own.

Sources: cloud.google.com/storage/docs/xml-api/reference-headers (address, `generation`, Range) and
cloud.google.com/storage/docs/xml-api/reference-status (error names, form of a body), read in 2026-11.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from aiohttp import web

from localcloud.rest.errors import CloudError
from localcloud.services.storage_objects import NO_BUCKET, NOT_HELD

_CONDITIONS: Final = ("if-", "x-goog-if-", "x-goog-encryption-")
"""Headers that change the response. They are rejected because an ignored condition looks like one that is met."""
_ERRORS: Final = {
    401: ("AuthenticationRequired", "Authentication required."),  # stackoverflow.com/q/63222450
    403: ("AccessDenied", "Access denied."),  # kylemcdonald/ethereum-emissions#6
    404: ("NoSuchKey", "The specified key does not exist."),  # googleapis/google-cloud-node#1037
    412: ("PreconditionFailed", NOT_HELD),
    416: ("InvalidRange", "The requested range cannot be satisfied."),  # fsouza/fake-gcs-server, fakestorage/object.go
    501: ("NotImplemented", "The requested operation is not implemented."),
}
"""HTTP status -> name and message. The message of the JSON API becomes the details."""
_ANONYMOUS: Final = "Anonymous caller does not have storage.objects.get access to the Google Cloud Storage object."
"""A read without a token is 403, not 401 as in the JSON API (kylemcdonald/ethereum-emissions#6)."""


def json_path(bucket: str, raw_name: str) -> str:
    """Return the path of `storage.objects.get` for an object whose name can have encoded and plain slashes."""
    return f"storage/v1/b/{bucket}/o/{quote(unquote(raw_name), safe='')}"


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise 501 for a header with a condition or an encryption key."""
    unknown = [name for name in headers if name.lower().startswith(_CONDITIONS)]
    if unknown:
        raise CloudError.unimplemented(f"Reads of the XML API: the local cloud does not model {', '.join(unknown)}.")


def refusal(error: CloudError) -> web.Response:
    """Return an error in the form of the XML API."""
    status, details = error.code, error.message
    if status == HTTPStatus.UNAUTHORIZED and error.reason == "required":
        status, details = HTTPStatus.FORBIDDEN, _ANONYMOUS
    if error.message == NO_BUCKET:
        name = "NoSuchBucket"
        message = NO_BUCKET
        details = ""
    else:
        other = "InvalidArgument" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "InternalError"
        name, message = _ERRORS.get(status, (other, details))
    more = f"<Details>{escape(details)}</Details>" if details != message else ""
    text = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{name}</Code><Message>{escape(message)}</Message>{more}</Error>"
    return web.Response(status=status, text=text, content_type="application/xml", headers=error.headers)
