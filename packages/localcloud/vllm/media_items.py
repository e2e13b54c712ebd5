"""Images, sounds and videos of a chat: their tokens as Gemma 4's processor counts them, and their content for the simulated model.

The counts follow vLLM's gemma4_mm.py and transformers' Gemma 4 processor. An image is scaled until its patches fill the configured
tokens, a sound has a token for 40 ms, and a video is a series of timestamps and frames.
"""

import base64
import binascii
import io
import math
import re
import wave
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from localcloud.json_values import as_object, packaged
from localcloud.vllm import tokens

KINDS: Final = {"image_url": "image", "input_audio": "audio", "audio_url": "audio", "video_url": "video"}
"""Modality by the type of a content part."""
SOFT_TOKENS: Final = (70, 140, 280, 560, 1120)
"""Sizes of an image that a server or a request can choose."""
DEFAULT_SOFT_TOKENS: Final = 280
_FRAME_TOKENS: Final = 70
_MOST_FRAMES: Final = 32
_MOST_AUDIO_TOKENS: Final = 750
_PATCH_PX: Final = 16
_POOLING: Final = 3
_SAMPLING_HZ: Final = 16_000
_WINDOW_S: Final = 0.02
_AUDIO_OPENINGS: Final = (b"OggS", b"fLaC", b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")
_ASKS_COLOR: Final = re.compile(r"\bcolou?rs?\b", re.IGNORECASE)
_ASKS_BEEPS: Final = re.compile(r"\bhow many (?:beeps|tones)\b", re.IGNORECASE)
_JPEG: Final = b"\xff\xd8\xff"
_END: Final = b"\xff\xd9"


@dataclass(frozen=True, slots=True)
class Size:
    """Width and height in pixels."""

    width: int
    height: int


class MediaItemError(Exception):
    """A file that vLLM cannot read, with its message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaItem:
    """One item: its modality, the tokens that it adds to the prompt, and its files: one image or sound, or the frames of a video."""

    kind: str
    tokens: int
    files: tuple[bytes, ...] = ()

    def seen(self) -> list[str]:
        """Return the colors of the image or of the frames in their order, without repetition. Empty if a file cannot be read."""
        colors = [color_of(file) for file in self.files] if self.kind != "audio" else []
        return [color for at, color in enumerate(colors) if color is not None and (at == 0 or colors[at - 1] != color)]

    def beeps(self) -> int:
        """Return the number of loud parts of a WAV file; 0 for other files."""
        return sum(_beeps(file) for file in self.files) if self.kind == "audio" else 0


def answer_about(items: tuple[MediaItem, ...], question: str) -> str | None:
    """Return the answer to a question about colors or beeps, from the files themselves. None for another question, or without such files."""
    if _ASKS_BEEPS.search(question):
        heard = sum(item.beeps() for item in items)
        return str(heard) if heard else None
    colors = [color for item in items for color in item.seen()] if _ASKS_COLOR.search(question) else []
    return ", ".join(colors) or None


def item_of(part: Mapping[str, Any], soft_tokens: int) -> MediaItem:
    """Return the item of a content part. One that is behind a URL has the most tokens. Raises MediaItemError."""
    kind = KINDS[part["type"]]
    if part["type"] == "input_audio":
        media_type, text = "audio/wav", str(as_object(part["input_audio"]).get("data", ""))
    else:
        head, _, text = str(as_object(part.get(part["type"])).get("url", "")).partition(",")
        if not head.startswith("data:"):
            return MediaItem(kind=kind, tokens=_most_tokens(kind, soft_tokens))
        media_type, _, encoding = head[5:].rpartition(";")
        if encoding != "base64":
            raise MediaItemError("Only base64 data URLs are supported for now.")
    files = [
        _decoded(one) for one in (text.split(",")[:_MOST_FRAMES] if media_type.lower() == "video/jpeg" else [text])
    ]
    return {"image": _image, "audio": _audio, "video": _video}[kind](files, soft_tokens)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise MediaItemError(str(error)) from None


def _most_tokens(kind: str, soft_tokens: int) -> int:
    of_frame = _FRAME_TOKENS + 2 + tokens.count(" 00:00 ")
    return {"image": soft_tokens + 2, "audio": _MOST_AUDIO_TOKENS + 2, "video": _MOST_FRAMES * of_frame}[kind]


def _image(files: list[bytes], soft_tokens: int) -> MediaItem:
    size = size_of(files[0])
    if size is None:
        raise MediaItemError("Failed to load image: cannot identify image file <_io.BytesIO object at 0x7f0000000000>")
    return MediaItem(kind="image", tokens=soft_tokens_of(size, soft_tokens) + 2, files=tuple(files))


def soft_tokens_of(size: Size, most: int) -> int:
    """Return the tokens of an image without its delimiters: whole units of 3 x 3 patches, as many as fit."""
    unit = _PATCH_PX * _POOLING
    scale = math.sqrt(most * unit * unit / max(size.width * size.height, 1))
    height = max(1, math.floor(size.height * scale / unit))
    width = max(1, math.floor(size.width * scale / unit))
    return min(height * width, most)


def _audio(files: list[bytes], _: int) -> MediaItem:
    samples = _samples(files[0])
    if samples is None:
        if not files[0].startswith(_AUDIO_OPENINGS) and files[0][4:8] != b"ftyp":
            raise MediaItemError("Invalid or unsupported audio file.")
        return MediaItem(kind="audio", tokens=_most_tokens("audio", 0))
    values, rate = samples
    return MediaItem(kind="audio", tokens=audio_tokens_of(len(values) / rate) + 2, files=tuple(files))


def audio_tokens_of(seconds: float) -> int:
    """Return the tokens of a sound without its delimiters: windows of 20 ms each 10 ms, halved twice."""
    hop = _SAMPLING_HZ // 100
    count = (round(seconds * _SAMPLING_HZ) + hop - (2 * hop + 1)) // hop + 1
    for _ in range(2):
        count = (max(count, 0) + 1) // 2
    return min(count, _MOST_AUDIO_TOKENS)


def _samples(data: bytes) -> tuple[memoryview, int] | None:
    """Return the samples of the first channel of a 16-bit WAV file and their rate, or None."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return None
    try:
        with wave.open(io.BytesIO(data)) as reader:
            if reader.getsampwidth() != 2:  # noqa: PLR2004 - bytes
                return None
            raw = reader.readframes(reader.getnframes())
            channels = reader.getnchannels()
            rate = reader.getframerate()
    except (wave.Error, EOFError):
        raise MediaItemError("Invalid or unsupported audio file.") from None
    # `wave` returns native integers. A view costs nothing, and most requests need only the length.
    return memoryview(raw[: len(raw) // 2 * 2]).cast("h")[::channels], rate


def _beeps(data: bytes) -> int:
    samples = _samples(data)
    if samples is None:
        return 0
    values, rate = samples
    window = max(round(rate * _WINDOW_S), 1)
    peaks = [max(map(abs, values[at : at + window])) for at in range(0, len(values), window)]
    threshold = max(peaks, default=0) / 2
    loud = [peak > threshold > 0 for peak in peaks]
    return sum(now and not before for before, now in zip([False, *loud], loud, strict=False))


def _video(files: list[bytes], _: int) -> MediaItem:
    frames = files if len(files) > 1 else jpeg_images(files[0])
    if not frames:
        # The frames of other codecs are not read.
        return MediaItem(kind="video", tokens=_most_tokens("video", 0))
    kept = [frames[at * len(frames) // min(len(frames), _MOST_FRAMES)] for at in range(min(len(frames), _MOST_FRAMES))]
    count = 0
    for at, frame in enumerate(kept):
        size = size_of(frame) or Size(1, 1)
        count += soft_tokens_of(size, _FRAME_TOKENS) + 2 + tokens.count(f" 00:{at:02d} ")
    return MediaItem(kind="video", tokens=count, files=tuple(kept))


def size_of(data: bytes) -> Size | None:
    """Return the size of an image; None if its format is unknown."""
    from PIL import Image  # noqa: PLC0415 - few servers get an image

    try:
        with Image.open(io.BytesIO(data)) as image:
            return Size(*image.size)
    except (OSError, Image.DecompressionBombError):
        return None


def color_of(data: bytes) -> str | None:
    """Return the name of an image's mean color; None if it cannot be read."""
    from PIL import Image  # noqa: PLC0415 - as above

    try:
        with Image.open(io.BytesIO(data)) as image:
            colored = image.convert("RGB")
            # Pillow's types name one of numpy, which this project does not install.
            mean = colored.resize((1, 1), Image.Resampling.BOX)  # pyright: ignore[reportUnknownMemberType]
            color = mean.getpixel((0, 0))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
    if not isinstance(color, tuple):
        return None
    named: dict[str, list[int]] = packaged("localcloud.vllm", "colors.json")
    return min(named, key=lambda name: sum((a - b) ** 2 for a, b in zip(color, named[name], strict=True)))


def jpeg_images(data: bytes) -> list[bytes]:
    """Return the JPEG images inside a file, such as the frames of a Motion JPEG video."""
    return [_JPEG + part.partition(_END)[0] + _END for part in data.split(_JPEG)[1:]]
