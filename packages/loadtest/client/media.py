"""Content parts of a chat request for an image, a sound or a video, as OpenAI's API and vLLM's extension for videos define them.

The format is read from the first bytes, not from the name, so a file with a wrong name is sent with its right type.
"""

import base64
from pathlib import Path
from typing import Final, Literal, TypeAlias

MediaKind: TypeAlias = Literal["image", "audio", "video"]

_RIFF: Final = {b"WAVE": ("audio", "wav"), b"WEBP": ("image", "webp"), b"AVI ": ("video", "avi")}
_OPENINGS: Final[tuple[tuple[bytes, MediaKind, str], ...]] = (
    (b"\x89PNG\r\n\x1a\n", "image", "png"),
    (b"\xff\xd8\xff", "image", "jpeg"),
    (b"GIF8", "image", "gif"),
    (b"fLaC", "audio", "flac"),
    (b"OggS", "audio", "ogg"),
    (b"ID3", "audio", "mp3"),
    (b"\xff\xfb", "audio", "mp3"),
    (b"\xff\xf3", "audio", "mp3"),
    (b"\xff\xf2", "audio", "mp3"),
    (b"\x1aE\xdf\xa3", "video", "webm"),
)
_ISO_BRANDS: Final = {b"M4A ": ("audio", "m4a"), b"qt  ": ("video", "quicktime")}
"""Brands of the ISO base media format (`ftyp`, ISO/IEC 14496-12) that are not an MP4 video."""
_FORMATS: Final[dict[MediaKind, str]] = {
    "image": "PNG, JPEG, WebP or GIF",
    "audio": "WAV, MP3, FLAC, Ogg or M4A",
    "video": "MP4, WebM, QuickTime or AVI",
}


class MediaError(ValueError):
    """A file is not readable, or not of the requested kind. The message names the file and the allowed formats."""


def media_part(source: Path | bytes, kind: MediaKind) -> dict[str, object]:
    """Return the content part with a file's data. Raises MediaError."""
    data, name = _read(source, kind)
    found = media_format(data)
    if found is None or found[0] != kind:
        is_what = "unknown" if found is None else f"{found[0]}/{found[1]}"
        raise MediaError(f"The format of {name} is {is_what}. {kind.capitalize()} files are {_FORMATS[kind]}.")
    text = base64.b64encode(data).decode("ascii")
    if kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": text, "format": found[1]}}
    part = f"{kind}_url"
    return {"type": part, part: {"url": f"data:{kind}/{found[1]};base64,{text}"}}


def media_format(data: bytes) -> tuple[str, str] | None:
    """Return the kind and the subtype of a file, such as `image` and `png`, or None if its first bytes are unknown."""
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12])
    if data[4:8] == b"ftyp":
        return _ISO_BRANDS.get(data[8:12], ("video", "mp4"))
    return next(((kind, subtype) for opening, kind, subtype in _OPENINGS if data.startswith(opening)), None)


def _read(source: Path | bytes, kind: MediaKind) -> tuple[bytes, str]:
    if isinstance(source, bytes):
        return source, f"the {kind}"
    try:
        return source.read_bytes(), str(source)
    except OSError as error:
        raise MediaError(f"Cannot read {source}: {error.strerror}.") from None
