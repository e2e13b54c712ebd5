"""`df -BG --output=used /` on a simulated machine: the system's GiB, and those of each pulled image."""

import sys
from typing import Final

from localcloud.running.shims.docker_images import pulled
from localcloud.running.shims.machine import this_machine

_SYSTEM_GIB: Final = 15
_IMAGE_GIB: Final = 18
"""Typical values of the entry `tpu-boot-disk-left` (assumed)."""

if __name__ == "__main__":
    if sys.argv[1:] != ["-BG", "--output=used", "/"]:
        sys.exit("df: the simulated machine only knows `df -BG --output=used /`.")
    print(f"Used\n{_SYSTEM_GIB + _IMAGE_GIB * len(pulled(this_machine()))}G")
