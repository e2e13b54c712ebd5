"""GitHub comments that are updated in place. A marker in the text identifies them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import requests

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError

AUTHOR = "github-actions[bot]"
"""Author of the comments of a workflow. The author of a comment can change it later, so a comment of another one is not updated."""
_CALL_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GitHubRepository:
    """A repository and the token to write to it. The token appears in no message."""

    api: str
    name: str
    token: str = field(repr=False)

    def upsert_comment(self, pull_request: int, marker: str, body: str) -> str:
        """Return "created" or "updated". Reads the first 100 comments, the oldest, and updates only one of AUTHOR. Raises ScriptError."""
        comments = f"issues/{pull_request}/comments"
        found = self._send("GET", f"{comments}?per_page=100")
        for item in cast("list[Mapping[str, object]]", found):
            author = cast("Mapping[str, object]", item.get("user") or {}).get("login")
            if author == AUTHOR and str(item.get("body") or "").startswith(marker):
                self._send("PATCH", f"issues/comments/{item['id']}", {"body": body})
                return "updated"
        self._send("POST", comments, {"body": body})
        return "created"

    def _send(self, method: str, path: str, body: Mapping[str, str] | None = None) -> object:
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/vnd.github+json"}
        url = f"{self.api}/repos/{self.name}/{path}"
        try:
            answer = requests.request(method, url, headers=headers, json=body, timeout=_CALL_LIMIT_S)
        except requests.RequestException as error:
            raise ScriptError(
                f"Cannot reach GitHub at {url} ({type(error).__name__}). Run the command again."
            ) from None
        if not answer.ok:
            raise ScriptError(f"GitHub rejected {method} {url} with {answer.status_code}: {answer.text[:200]}")
        return cast("object", answer.json())


def repository_from_environment(name: str) -> GitHubRepository:
    """Return a repository. Raises CommandRefusedError without GITHUB_TOKEN."""
    token = os.environ.get("GITHUB_TOKEN", "")
    if not token:
        raise CommandRefusedError(
            "Cannot post to GitHub: GITHUB_TOKEN is not set. Set it to a token with write access."
        )
    api = os.environ.get("GITHUB_API_URL", "https://api.github.com").rstrip("/")
    return GitHubRepository(api=api, name=name, token=token)
