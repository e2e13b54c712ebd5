"""Small files for the checks of images, sound and video, made here: a plain color, beeps, and plain colors one after another.

A response about them can be judged by a word or a number.
"""

import io
import math
import struct
import wave
import zlib
from pathlib import Path
from typing import Final

COLORS: Final = {"red": (220, 20, 30), "green": (10, 150, 40), "blue": (20, 60, 220), "yellow": (250, 220, 0)}
SIDE_PX: Final = 64
"""Gemma 4's processor enlarges an image, so a small one has as many tokens."""
RATE_HZ: Final = 16_000
"""Samples per second of Gemma 4's audio encoder."""
BEEP_HZ: Final = 880.0
BEEP_S: Final = 0.3
PAUSE_S: Final = 0.4
_AMPLITUDE: Final = 12_000
VIDEO_COLORS: Final = ("red", "green", "blue")
_VIDEO: Final = Path(__file__).with_name("colors.mp4")


def picture(color: str) -> bytes:
    """Return a square PNG image of one color (W3C PNG specification: 8 bits per sample, color type 2: RGB)."""
    header = struct.pack(">IIBBBBB", SIDE_PX, SIDE_PX, 8, 2, 0, 0, 0)
    rows = (b"\0" + bytes(COLORS[color]) * SIDE_PX) * SIDE_PX
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*one) for one in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def sound_s(beeps: int) -> float:
    """Return the duration of `sound(beeps)` in seconds."""
    return PAUSE_S + beeps * (BEEP_S + PAUSE_S)


def sound(beeps: int) -> bytes:
    """Return a WAV file (16-bit PCM, one channel) with this many beeps."""
    pause = [0] * round(PAUSE_S * RATE_HZ)
    beep = [round(_AMPLITUDE * math.sin(2 * math.pi * BEEP_HZ * n / RATE_HZ)) for n in range(round(BEEP_S * RATE_HZ))]
    samples = [*pause, *((beep + pause) * beeps)]
    file = io.BytesIO()
    with wave.open(file, "wb") as recording:
        recording.setnchannels(1)
        recording.setsampwidth(2)
        recording.setframerate(RATE_HZ)
        recording.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return file.getvalue()


def video() -> bytes:
    """Return an MP4 file that shows each of VIDEO_COLORS for one second, as one JPEG image.

    OpenCV 5.0.0's VideoWriter wrote the file, with the code `MJPG` and 64 x 64 pixels. A decoder of vLLM's crashes on uncompressed frames.
    """
    return _VIDEO.read_bytes()
