import pytest

from loadtest.client.media import MediaError, media_part


def test_another_kind_an_unknown_format_and_a_missing_file_are_refused_by_name(tmp_path):
    path = tmp_path / "sound.png"
    path.write_bytes(b"RIFF\x00\x00\x00\x00WAVErest")
    with pytest.raises(MediaError, match=r"sound\.png is audio/wav\. Image files are PNG, JPEG, WebP or GIF\."):
        media_part(path, "image")
    with pytest.raises(MediaError, match=r"format of the video is unknown\. Video files are MP4"):
        media_part(b"text", "video")
    with pytest.raises(MediaError, match=r"Cannot read .*missing\.wav: No such file"):
        media_part(tmp_path / "missing.wav", "audio")
