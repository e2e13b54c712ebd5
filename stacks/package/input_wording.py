"""Findings in the words of the package: changes of a component's inputs, and no command for a stack."""

import re
from collections.abc import Mapping
from typing import Final

from gemma_serving.planning.data.images import IMAGES
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.solve.remedy_wording import NO_STACK
from gemma_serving.stacks.package.inputs import NOT_OFFERED
from gemma_serving.stacks.package.schema import COMPONENTS
from gemma_serving.stacks.settings_wording import BLOCKS, TARGETS, file_changes, phrases

_SENTENCE: Final = re.compile(r"(?<=[.?!]) ")
_SETTINGS: Final = "|".join(re.escape(key) for key in NOT_OFFERED if not key.islower())
_OF_A_STACK: Final = re.compile(rf"\bgemma [a-z]|--from-hub|Pulumi\.|\b({_SETTINGS})\b")
"""Words of a sentence that only helps the user of a stack."""


class InputWording:
    """Fields as inputs of a component."""

    stack = NO_STACK

    def __init__(self, question: Question) -> None:
        """Use the inputs of the component that the deployment is planned for."""
        self._question = question

    def inputs(self, changes: Mapping[str, object]) -> Mapping[str, object] | None:
        """Return the new values by input; None removes one. `target` is there if another component has them. None if no component has them."""
        if with_changes(self._question, changes).facts.platform not in TARGETS:
            return None
        found = file_changes(self._question, changes)
        image = IMAGES.get(str(found.get("image")))
        if image is not None and image.build_context is not None:  # only a stack builds it
            return None
        if found.keys() & (NOT_OFFERED.keys() - {"target"}):
            return None
        if "weights" in found:  # other values than bucket reject the name
            return {**found, "bucketName": "NAME" if found["weights"] == "bucket" else None}
        return found

    def change(self, changes: Mapping[str, object]) -> str | None:
        """Return the inputs to set and to remove, with the component that has them if it is another; None if no component has them."""
        found = self.inputs(changes)
        if found is None:
            return None
        if "target" not in found:
            return " and ".join(phrases(found)) or None
        block = BLOCKS[str(found["target"])]
        component = next(name for name, one in COMPONENTS.items() if one.block == block)
        stated = {key: value for key, value in found.items() if value is not None and key not in {"target", "image"}}
        return f"use {component} and {next(phrases(stated))}"


def without_commands(text: str) -> str:
    """Return a text without the sentences that name a command for a stack."""
    lines = (_SENTENCE.split(line) for line in text.splitlines())
    return "\n".join(" ".join(one for one in line if not _OF_A_STACK.search(one)) for line in lines).rstrip()
