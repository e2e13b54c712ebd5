"""Post a comment on a pull request."""

import os
from typing import cast

import requests

from scripts.errors import ScriptError
from scripts.preview.report import MARKER

_CALL_LIMIT_S = 30.0
_PAGE = 100


def upsert_comment(api: str, repository: str, pull_request: int, token: str, body: str) -> str:
    """Create the comment on a pull request, or update it. Return "created" or "updated".

    Raises ScriptError with GitHub's message.
    """
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}
    comments = f"{api}/repos/{repository}/issues/{pull_request}/comments"
    page = 1
    while True:
        found = _github("GET", comments, headers, params={"per_page": str(_PAGE), "page": str(page)})
        items = cast("list[dict[str, object]]", found)
        for item in items:
            if str(item.get("body") or "").startswith(MARKER):
                _github(
                    "PATCH", f"{api}/repos/{repository}/issues/comments/{item['id']}", headers, json_body={"body": body}
                )
                return "updated"
        if len(items) < _PAGE:
            _github("POST", comments, headers, json_body={"body": body})
            return "created"
        page += 1


def _github(
    method: str,
    url: str,
    headers: dict[str, str],
    *,
    params: dict[str, str] | None = None,
    json_body: dict[str, str] | None = None,
) -> object:
    try:
        answer = requests.request(method, url, headers=headers, params=params, json=json_body, timeout=_CALL_LIMIT_S)
    except requests.RequestException as error:
        raise ScriptError(f"GitHub could not be reached at {url} ({type(error).__name__}); run it again.") from None
    if not answer.ok:
        raise ScriptError(f"GitHub refused {method} {url} with {answer.status_code}: {answer.text[:200]}")
    return cast("object", answer.json())


def api_url() -> str:
    """Return the root URL of GitHub's API."""
    return os.environ.get("GITHUB_API_URL", "https://api.github.com").rstrip("/")
