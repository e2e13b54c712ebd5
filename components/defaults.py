"""Default arguments of components: values of the running program."""

import re
from typing import Final

import pulumi

from gemma_serving.components.checks import InvalidArgumentError
from gemma_serving.contracts.labels import Ownership

_LABEL_VALUE: Final = re.compile(r"[a-z0-9_-]{1,63}")


def program_ownership() -> Ownership:
    """Return the Pulumi project and stack of the running program.

    Raises InvalidArgumentError if one of them cannot be the value of a label.
    """
    for kind, name in (("project", pulumi.get_project()), ("stack", pulumi.get_stack())):
        if not _LABEL_VALUE.fullmatch(name):
            raise InvalidArgumentError(
                f'The Pulumi {kind} is "{name}", which cannot be the value of a label: up to 63 lower-case letters, digits, '
                "hyphens and underscores. Pass `ownership=Ownership(project=..., stack=...)` (gemma_serving.contracts.labels)."
            )
    return Ownership(project=pulumi.get_project(), stack=pulumi.get_stack())
