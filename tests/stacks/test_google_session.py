"""A response of Google has an end."""

from unittest.mock import Mock

import pytest

from gemma_serving.cloud import google_session
from gemma_serving.cloud.google_session import NotJsonError


@pytest.mark.parametrize(("piece_s", "pieces"), [(0, 1025), (100, 4)])
def test_a_response_without_an_end_is_one_sentence(piece_s, pieces):
    read = []

    def endless(size):
        while True:
            read.append(size)
            yield b" " * size

    answer = Mock(url="https://run.googleapis.com/v2/x?key=1", iter_content=endless)
    said = r"^https://run\.googleapis\.com/v2/x sent [\d,]+ bytes without an end\. At most 64 MiB in 300 s are read\. Check"
    with pytest.raises(NotJsonError, match=said):
        google_session._body_of(answer, lambda: len(read) * piece_s)
    assert len(read) == pieces
