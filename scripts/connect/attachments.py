"""Files in a chat: read, checked by content, and rejected before sending if the server does not accept them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contracts.errors import CommandRefusedError
from contracts.features import ServedFeatures
from contracts.fields import as_mapping, as_sequence
from contracts.outputs import StackOutputs
from loadtest.client.media import MediaError, MediaKind, media_part
from scripts.connect.proxy import MAX_BODY_BYTES

KINDS: Final[tuple[MediaKind, ...]] = ("image", "audio", "video")
CLOUD_RUN_REQUEST_BYTES: Final = 32 * 2**20
"""Maximum HTTP/1 request size of Cloud Run (cloud.google.com/run/quotas, "Maximum HTTP/1 request size")."""
_PROMPT_BYTES: Final = 2**20
"""Part of a request that is left for its text."""
_MIB: Final = 2**20
_NAMES: Final[Mapping[MediaKind, str]] = {"image": "image", "audio": "audio file", "video": "video"}


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


def media_counts(messages: Sequence[Mapping[str, object]]) -> Mapping[MediaKind, int]:
    """Return the files in the messages of a request by kind. A conversation repeats them with each prompt, and vLLM counts all."""
    types = [str(as_mapping(part).get("type")) for message in messages for part in as_sequence(message.get("content"))]
    return {kind: sum(kind in name.partition("_url")[0] for name in types) for kind in KINDS}


def unsupported(features: ServedFeatures | None, counts: Mapping[MediaKind, int]) -> str:
    """Return why the server rejects these numbers of files, with the setting to change; empty if it accepts them or is unknown."""
    if features is None:
        return ""
    limits = {"image": features.images, "audio": features.audios, "video": features.videos}
    for kind, count in counts.items():
        most, name = limits[kind], _NAMES[kind]
        if count > most:
            allowed = f"at most {most} {name}{'' if most == 1 else 's'} per conversation" if most else f"no {name}s"
            others = ", or start again with /new" if most else ""
            return (
                f"The server accepts {allowed}, but this request has {count}. Set `vllm.multimodal.{kind}s` to {count} or more and run "
                f"`pulumi up`{others}."
            )
    return ""
