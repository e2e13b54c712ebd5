"""Reject requests that no client of this machine's user sends: from web pages, under a foreign host name, or without a token issued by this cloud.

A call also counts against the quota of a project: `x-goog-user-project`, which a user's login needs and Google checks. Calls of a service account
count against its own project. A user's login belongs to a Google project that has no API enabled, so its calls need the header, except for APIs
that count against the project of the resource
(cloud.google.com/docs/quotas/quota-project and cloud.google.com/docs/authentication/troubleshoot-adc, 2026-11).
"""

from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from localcloud.callers import SHARED_QUOTA_HEADER, foreign_host, web_page_header
from localcloud.rest import bodies
from localcloud.rest.call import Caller
from localcloud.rest.discovery import DiscoveryDocument
from localcloud.rest.errors import CloudError, ErrorStyle
from localcloud.services import serviceusage
from localcloud.world.cloud import Cloud, project_policy

_QUERY_TOKENS: Final = ("access_token", "oauth_token")
_MISSING: Final = (
    "Request is missing required authentication credential. Expected OAuth 2 access token, login cookie or other valid authentication credential. "
    "See https://developers.google.com/identity/sign-in/web/devconsole-project."
)
_INVALID: Final = (
    "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid authentication credential. "
    "See https://developers.google.com/identity/sign-in/web/devconsole-project."
)
"""Text from https://github.com/googleapis/google-api-php-client/issues/1391."""
_INVALID_AT_STORAGE: Final = "Invalid Credentials"
"""Text from https://github.com/ShareX/ShareX/issues/3460."""
_JSON: Final = "application/json"

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
HEADER: Final = "x-goog-user-project"
USE: Final = "serviceusage.services.use"
_LIBRARY_PROJECT: Final = "764086051850"
"""The Google project that `gcloud auth application-default login` belongs to, as Google's error names it."""
_BY_RESOURCE: Final = frozenset({"compute", "storage"})
"""APIs that count against the project of the resource. Compute Engine is the example on Google's page; Cloud Storage's own clients have worked
without a quota project since before quota projects existed. Google lists no others, so all others are rejected."""
_ACCOUNT: Final = ".gserviceaccount.com"


def loopback_only(cloud: Cloud) -> Middleware:
    """Return a middleware that answers 403 to web pages and to requests under a host name other than the loopback address.

    A web page can send a simple request (Fetch Standard, "CORS-safelisted request-header") to any port of this machine, and can read the answers
    of the page's host name if that name resolves to 127.0.0.1.
    """

    @web.middleware
    async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
        host, _, port = cloud.base_url.removeprefix("http://").rpartition(":")
        if foreign_host(request.headers.get(hdrs.HOST), address=host, port=int(port)):
            return _refusal(f"The local cloud only answers requests to {host}:{port} and localhost:{port}.")
        sent = web_page_header(request.headers)
        if sent is not None:
            return _refusal(f"The local cloud rejects requests from web pages. This request has the header {sent}.")
        return await handler(request)

    return guard


@web.middleware
async def google_errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Answer in Google's format if a body cannot be read or a handler raises a Google error."""
    try:
        return await handler(request)
    except (CloudError, *bodies.BROKEN) as broken:
        error = broken if isinstance(broken, CloudError) else bodies.refusal(broken, ErrorStyle.RPC)
        return web.json_response(error.body(ErrorStyle.RPC), status=error.code)


def _refusal(message: str) -> web.Response:
    return web.json_response(CloudError.denied(message).body(ErrorStyle.RPC), status=403)


def caller_of(cloud: Cloud, request: web.Request, style: ErrorStyle = ErrorStyle.RPC) -> Caller:
    """Return the caller, identified by bearer token. Raises CloudError (401) without a token that this cloud has issued.

    A token in the query is rejected because addresses are logged. Google has rejected it too since 2021-06-01
    (https://github.com/googleapis/google-auth-library-nodejs/pull/991).
    """
    scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if any(name in request.query for name in _QUERY_TOKENS) or not token.strip() or scheme.lower() != "bearer":
        raise CloudError.unauthenticated(_MISSING)
    email = cloud.tokens.access_token_email(token.strip())
    if email is None:
        raise CloudError.bad_credentials(_INVALID_AT_STORAGE if style is ErrorStyle.STORAGE else _INVALID)
    return Caller(email=email, operator=cloud.may_do_everything(email))


def operator_only(cloud: Cloud, handler: _Handler) -> _Handler:
    """Return the handler behind checks for the operator's token and, with a body, `application/json`. Errors have Google's format."""

    async def checked(request: web.Request) -> web.StreamResponse:
        if caller_of(cloud, request).email != cloud.operator:
            raise CloudError.denied(f"The admin API only accepts the operator's token ({cloud.operator}).")
        if request.can_read_body and request.content_type != _JSON:
            text = f"{request.method} {request.path}: Content-Type is {request.content_type}, expected {_JSON}."
            raise CloudError(415, "INVALID_ARGUMENT", text, reason="invalid")
        return await handler(request)

    return checked


def quota_project_of(request: web.Request) -> str | None:
    """Return the project that a request names, or `gcloud` for a call of the gcloud stand-in, or None."""
    return request.headers.get(HEADER) or request.headers.get(SHARED_QUOTA_HEADER)


def check_quota_project(cloud: Cloud, request: web.Request, document: DiscoveryDocument, caller: Caller) -> None:
    """Raise 403 for a user's call without a quota project, and for a quota project that the caller has no access to or that lacks the API."""
    named = request.headers.get(HEADER)
    if named:
        _check_named(cloud, document, caller, named)
    elif _is_person(caller) and document.api not in _BY_RESOURCE and quota_project_of(request) is None:
        raise CloudError.without_quota_project(document.api, _LIBRARY_PROJECT)


def _check_named(cloud: Cloud, document: DiscoveryDocument, caller: Caller, named: str) -> None:
    project = cloud.project_id(named)
    allowed = project is not None and (
        caller.operator or cloud.policies.allows(caller.email, USE, [project_policy(project)])
    )
    if project is None or not allowed:
        raise CloudError.user_project_denied(document.api, named)
    if not serviceusage.answers(cloud, project, document.api):
        raise serviceusage.disabled(cloud, document.title, document.api, project)


def _is_person(caller: Caller) -> bool:
    return not caller.email.endswith(_ACCOUNT)
