"""Signed names of archives: an HMAC of content and location, which only a server of the stack can create."""

import hashlib
import hmac
import re
from dataclasses import dataclass, field

SIGNED_PURPOSE = "gemma-serving compile archive 1"
"""First line of the signed text, which prevents use of the signature for other purposes."""
SIGNED_NAME = re.compile(r"(?P<digest>[0-9a-f]{64})-(?P<size>0|[1-9][0-9]{0,14})-(?P<signature>[0-9a-f]{64})")


@dataclass(frozen=True)
class ArchiveSigner:
    """Names of the archives in `uri` (gs://BUCKET/FOLDER). Raises ValueError if the key is empty."""

    key: str = field(repr=False)
    uri: str
    suffix: str

    def __post_init__(self) -> None:
        if not self.key.strip():
            raise ValueError("the key that signs archives is empty, so none is used")

    def name(self, digest: str, size: int) -> str:
        """Return the name of an archive within the folder. `digest` is the SHA-256 of its bytes, `size` their number."""
        return f"{digest}-{size}-{self._signature(digest, size)}{self.suffix}"

    def signed(self, name: str) -> "tuple[str, int] | None":
        """Return the SHA-256 and the size of an archive with a name that this stack signed, or None for other names."""
        found = SIGNED_NAME.fullmatch(name[: -len(self.suffix)]) if name.endswith(self.suffix) else None
        if found is None:
            return None
        digest, size = found["digest"], int(found["size"])
        return (digest, size) if hmac.compare_digest(self._signature(digest, size), found["signature"]) else None

    def _signature(self, digest: str, size: int) -> str:
        text = "\n".join((SIGNED_PURPOSE, self.uri, self.suffix, digest, str(size)))
        return hmac.new(self.key.encode(), text.encode(), hashlib.sha256).hexdigest()
