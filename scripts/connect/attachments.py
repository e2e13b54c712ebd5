"""Files in a chat: read, and checked by content and size. How many a conversation may have, the server says."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contracts.errors import CommandRefusedError
from contracts.outputs import StackOutputs
from loadtest.client.media import MediaError, MediaKind, media_part
from scripts.connect.proxy import MAX_BODY_BYTES

KINDS: Final[tuple[MediaKind, ...]] = ("image", "audio", "video")
CLOUD_RUN_REQUEST_BYTES: Final = 32 * 2**20
"""Maximum HTTP/1 request size of Cloud Run (cloud.google.com/run/quotas, "Maximum HTTP/1 request size")."""
_PROMPT_BYTES: Final = 2**20
"""Part of a request that is left for its text."""
_MIB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file to send with a prompt."""

    kind: MediaKind
    path: Path
    size: int
    part: Mapping[str, object]
    """Content part of the message."""

    @property
    def shown(self) -> str:
        """Text for the user."""
        return f"{self.path} ({self.kind}, {self.size / 1024:,.0f} KiB)"


def request_limit(outputs: StackOutputs | None) -> int:
    """Return the maximum size of a request, in bytes: that of Cloud Run, or that of the local proxy."""
    is_cloud_run = outputs is not None and outputs.target != "tpu"
    return CLOUD_RUN_REQUEST_BYTES if is_cloud_run else MAX_BODY_BYTES


def attached(path: Path, kind: MediaKind, most_request_bytes: int) -> Attachment:
    """Return a file as an attachment. Raises CommandRefusedError if it is missing, too large, or of another kind."""
    most = (most_request_bytes - _PROMPT_BYTES) * 3 // 4
    try:
        size = path.stat().st_size
        if size > most:
            raise CommandRefusedError(
                f"{path} has {size / _MIB:,.1f} MiB; at most {most / _MIB:,.0f} MiB fit in one request. Send a smaller file."
            )
        return Attachment(kind=kind, path=path, size=size, part=media_part(path, kind))
    except OSError as error:
        raise CommandRefusedError(f"Cannot read {path}: {error.strerror}.") from None
    except MediaError as error:
        raise CommandRefusedError(str(error)) from None
