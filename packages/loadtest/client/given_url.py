"""Server address as given by a user."""

from urllib.parse import urlsplit


def server_root(url: str) -> str:
    """Return the address in `--url` without a trailing slash or /v1. Raises ValueError, with a sentence, if it is not usable."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"--url is {url!r}: expected http://HOST[:PORT] or https://HOST.")
    if parts.hostname == "localhost":
        raise ValueError("--url is localhost, which may resolve to IPv6 first and miss the server. Use 127.0.0.1.")
    return url.rstrip("/").removesuffix("/v1")
