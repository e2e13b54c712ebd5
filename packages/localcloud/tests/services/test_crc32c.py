"""The checksum of joined contents equals the checksum of the bytes."""

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

from localcloud.services import crc32c


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_joined_checksums_are_those_of_the_joined_bytes(first, second):
    value = google_crc32c.value
    assert crc32c.joined(value(first), value(second), len(second)) == value(first + second)


def test_nothing_before_and_the_notation():
    crc = google_crc32c.value(b"123456789")
    assert crc32c.joined(0, crc, 9) == crc == 0xE3069283
    assert crc32c.number(crc32c.text(crc)) == crc
    assert crc32c.text(crc) == "4waSgw=="
