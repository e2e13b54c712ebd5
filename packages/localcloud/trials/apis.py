"""The APIs that a run asks, and the one command that enables those that are off."""

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from localcloud.json_values import as_list, as_object
from localcloud.trials.judging import summary
from localcloud.trials.options import TryRefusedError
from localcloud.trials.sending import Sender

_SERVICE_USAGE: Final = "serviceusage.googleapis.com"
_ALWAYS: Final = frozenset({_SERVICE_USAGE, "cloudresourcemanager.googleapis.com"})
"""APIs that each run asks before its trials."""


def require_enabled(sender: Sender, project: str, urls: Iterable[str]) -> None:
    """Return if every API of these URLs is enabled. Raises TryRefusedError with one command that enables the others."""
    hosts = {host for url in urls if (host := urlsplit(url).netloc).endswith(".googleapis.com")}
    off = sorted((hosts | _ALWAYS) - _enabled(sender, project))
    if off:
        raise TryRefusedError(
            f"{len(off)} APIs that the trials ask are not enabled in project {project}. Run: "
            f"gcloud services enable {' '.join(off)} --project={project}"
        )


def _enabled(sender: Sender, project: str) -> frozenset[str]:
    """Return the enabled APIs; none if Service Usage, which lists them, is off itself."""
    url = f"https://{_SERVICE_USAGE}/v1/projects/{project}/services?filter=state:ENABLED&pageSize=200"
    found: set[str] = set()
    page = ""
    while True:
        reply = sender.send("GET", url + page)
        if reply.is_api_off:
            return frozenset()
        if not reply.is_accepted:
            raise TryRefusedError(
                f"Cannot read project {project}: {summary(reply)}. Check the id, the login "
                "(gcloud auth application-default login) and the role roles/serviceusage.serviceUsageViewer."
            )
        listed = map(as_object, as_list(as_object(reply.body).get("services")))
        found |= {str(each.get("name")).rpartition("/")[2] for each in listed if each.get("state") == "ENABLED"}
        token = as_object(reply.body).get("nextPageToken")
        if not token:
            return frozenset(found)
        page = f"&pageToken={token}"
