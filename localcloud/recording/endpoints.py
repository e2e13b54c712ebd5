"""The real endpoint of each API, and the variables that lead clients to the recorder instead."""

from collections.abc import Mapping
from dataclasses import dataclass

from localcloud.environment import API_OVERRIDES, REAL_PLUGIN_ENDPOINTS, without_proxy

_GOOGLE = {api.lower(): f"https://{api.lower()}.googleapis.com" for api in API_OVERRIDES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """The root URL of each API by its name, such as `https://run.googleapis.com`, without a slash at its end."""

    roots: Mapping[str, str]

    @classmethod
    def of(cls, environment: Mapping[str, str], upstream: str | None) -> "Endpoints":
        """Return `upstream`/API if there is an upstream, else what the endpoint variables of the environment say, else Google."""
        if upstream is not None:
            return cls(roots={api: f"{upstream.rstrip('/')}/{api}" for api in _GOOGLE})
        return cls(roots={**_GOOGLE, **_given(environment)})

    def url(self, path: str) -> str | None:
        """Return the real URL of a path that begins with the API's name, or None for an unknown API."""
        api, _, rest = path.lstrip("/").partition("/")
        root = self.roots.get(api)
        return None if root is None else f"{root}/{rest}"

    def local(self, url: str, base_url: str) -> str | None:
        """Return a URL of Google below the recorder's base URL, or None if it is no URL of these APIs."""
        for api, root in self.roots.items():
            if url.startswith(root + "/"):
                return f"{base_url}/{api}{url.removeprefix(root)}"
        # Google answers an upload's session with the host of the API; the local cloud with its own.
        host = self.roots["storage"].removesuffix("/storage")
        for path in ("/upload/", "/resumable/"):
            if url.startswith(host + path):
                return f"{base_url}/storage{url.removeprefix(host)}"
        return None


def _given(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the roots that the environment's own variables name."""
    found: dict[str, str] = {}
    named = [(name, path) for name, path in REAL_PLUGIN_ENDPOINTS.items()]
    named += [(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}", path) for api, path in API_OVERRIDES.items()]
    for name, path in named:
        api, _, version = path.partition("/")
        value = environment.get(name, "").rstrip("/")
        if value:
            found[api] = value.removesuffix("/" + version.rstrip("/")) if version else value
    return found


def variables(base_url: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that point Pulumi's plugins, gcloud and this project's scripts at a base URL."""
    found = {name: f"{base_url}/{path}" for name, path in REAL_PLUGIN_ENDPOINTS.items()}
    found.update(
        {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{base_url}/{path}" for api, path in API_OVERRIDES.items()}
    )
    return {**found, **without_proxy(inherited)}
