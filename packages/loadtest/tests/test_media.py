import base64

import pytest

from loadtest.client.media import MediaError, media_part

PNG = b"\x89PNG\r\n\x1a\nrest"
WAV = b"RIFF\x00\x00\x00\x00WAVErest"
MP4 = b"\x00\x00\x00\x18ftypisomrest"


def test_each_kind_is_the_part_that_openai_and_vllm_define(tmp_path):
    image, sound, video = media_part(PNG, "image"), media_part(WAV, "audio"), media_part(MP4, "video")
    assert image == {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PNG).decode()}"},
    }
    assert sound == {"type": "input_audio", "input_audio": {"data": base64.b64encode(WAV).decode(), "format": "wav"}}
    assert video["video_url"]["url"].startswith("data:video/mp4;base64,")
    wrongly_named = tmp_path / "picture.jpg"
    wrongly_named.write_bytes(PNG)
    assert media_part(wrongly_named, "image") == image


def test_another_kind_an_unknown_format_and_a_missing_file_are_refused_by_name(tmp_path):
    path = tmp_path / "sound.png"
    path.write_bytes(WAV)
    with pytest.raises(MediaError, match=r"sound\.png is audio/wav\. Image files are PNG, JPEG, WebP or GIF\."):
        media_part(path, "image")
    with pytest.raises(MediaError, match=r"format of the video is unknown\. Video files are MP4"):
        media_part(b"text", "video")
    with pytest.raises(MediaError, match=r"Cannot read .*missing\.wav: No such file"):
        media_part(tmp_path / "missing.wav", "audio")
