"""Enabled APIs of a project, from Service Usage, which works in every project."""

from collections.abc import Iterable
from urllib.parse import urlencode

from cloud.google_api import GoogleApi, answer_of
from contracts.answers import Answer
from contracts.fields import as_mapping, as_sequence

SERVICE_USAGE = "serviceusage"


def enabled_apis(google: GoogleApi, project: str, apis: Iterable[str]) -> Answer[frozenset[str]]:
    """Return the enabled ones of these APIs, by the first part of their services' names.

    It does not show whether another one was enabled before: Service Usage has no such field (discovery: serviceusage.v1 State).
    """
    return answer_of(SERVICE_USAGE, lambda: read_enabled_apis(google, project, apis))


def read_enabled_apis(google: GoogleApi, project: str, apis: Iterable[str]) -> frozenset[str]:
    """Return the enabled ones of these APIs. Raises GoogleListError and ScriptError."""
    parent = f"projects/{project}"
    query = urlencode([("names", f"{parent}/services/{api}.googleapis.com") for api in apis])
    answer = google.get(SERVICE_USAGE, f"v1/{parent}/services:batchGet?{query}")
    services = map(as_mapping, as_sequence(answer.get("services")))
    on = (str(service.get("name")) for service in services if service.get("state") == "ENABLED")
    return frozenset(name.rpartition("/")[2].removesuffix(".googleapis.com") for name in on)
