"""The project whose quota a call counts against: `x-goog-user-project`, which a user's login needs and Google checks.

Calls of a service account count against its own project. A user's login belongs to a Google project that has no API enabled, so its calls
need the header, except for APIs that count against the project of the resource
(cloud.google.com/docs/quotas/quota-project and cloud.google.com/docs/authentication/troubleshoot-adc, 2026-11).
"""

from typing import Final

from aiohttp import web

from localcloud.callers import SHARED_QUOTA_HEADER
from localcloud.rest.call import Caller
from localcloud.rest.discovery import DiscoveryDocument
from localcloud.rest.errors import CloudError
from localcloud.services import serviceusage
from localcloud.world.cloud import Cloud, project_policy

HEADER: Final = "x-goog-user-project"
USE: Final = "serviceusage.services.use"
_LIBRARY_PROJECT: Final = "764086051850"
"""The Google project that `gcloud auth application-default login` belongs to, as Google's error names it."""
_BY_RESOURCE: Final = frozenset({"compute", "storage"})
"""APIs that count against the project of the resource. Compute Engine is the example on Google's page; Cloud Storage's own clients have worked
without a quota project since before quota projects existed. Google lists no others, so all others are rejected."""
_ACCOUNT: Final = ".gserviceaccount.com"


def given(request: web.Request) -> str | None:
    """Return the project that a request names, or `gcloud` for a call of the gcloud stand-in, or None."""
    return request.headers.get(HEADER) or request.headers.get(SHARED_QUOTA_HEADER)


def check(cloud: Cloud, request: web.Request, document: DiscoveryDocument, caller: Caller) -> None:
    """Raise 403 for a user's call without a quota project, and for a quota project that the caller has no access to or that lacks the API."""
    named = request.headers.get(HEADER)
    if named:
        _check_named(cloud, document, caller, named)
    elif _is_person(caller) and document.api not in _BY_RESOURCE and given(request) is None:
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
