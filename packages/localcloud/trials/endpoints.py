"""The endpoint of each API: Google's, or the one that an environment variable sets."""

from collections.abc import Mapping
from dataclasses import dataclass

from localcloud.environment import API_OVERRIDES, REAL_PLUGIN_ENDPOINTS

HUB = "huggingface.co"
_GOOGLE = {api.lower(): f"https://{api.lower()}.googleapis.com" for api in API_OVERRIDES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """The root URL of each API by name, such as `https://run.googleapis.com`, without a trailing slash."""

    roots: Mapping[str, str]

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Endpoints":
        """Return the endpoints that environment variables set, and Google's endpoints for all other APIs."""
        return cls(roots={**_GOOGLE, **_given(environment)})

    def url(self, path: str) -> str | None:
        """Return the real URL of a path that starts with the API's name, or None for an unknown API."""
        api, _, rest = path.lstrip("/").partition("/")
        root = self.roots.get(api)
        return None if root is None else f"{root}/{rest}"


def _given(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the roots that the environment's own variables set."""
    found = {HUB: environment.get("HF_ENDPOINT", "").rstrip("/") or f"https://{HUB}"}
    named = [(name, path) for name, path in REAL_PLUGIN_ENDPOINTS.items()]
    named += [(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}", path) for api, path in API_OVERRIDES.items()]
    for name, path in named:
        api, _, version = path.partition("/")
        value = environment.get(name, "").rstrip("/")
        if value:
            found[api] = value.removesuffix("/" + version.rstrip("/")) if version else value
    return found
