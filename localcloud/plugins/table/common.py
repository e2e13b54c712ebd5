"""What several tables share."""

from collections.abc import Mapping
from typing import Final

from localcloud.plugins.schema import PropertySpec, text

PROJECT: Final = text(computed=True, force_new=True, local=True)
"""The project a resource is in: part of its path, never of its body; the provider's where the program says nothing."""

DELETION_POLICY: Final = text(local=True)
"""What a deletion does: `DELETE`, `ABANDON` (leave it and forget it) or `PREVENT` (refuse). Every type of the real provider has it."""

COMMON: Final[Mapping[str, PropertySpec]] = {"project": PROJECT, "deletionPolicy": DELETION_POLICY}
