"""Rule `image-by-digest`: containers of Cloud Run and of TPU machines name their image by digest, because a tag can change its content."""

import json
import re
from collections.abc import Iterator
from typing import Final, cast

from gemma_serving_policies.rule import Answer, Config, Rule, is_unknown, not_known, violation
from gemma_serving_policies.values import Found, Resource, Value, found_at

IMAGES: Final = {
    "gcp:cloudrunv2/service:Service": ("template", "containers", "image"),
    "gcp:cloudrunv2/job:Job": ("template", "template", "containers", "image"),
    "gcp:cloudrunv2/workerPool:WorkerPool": ("template", "containers", "image"),
    "gcp:cloudrun/service:Service": ("template", "spec", "containers", "image"),
}
"""Inputs with an image."""
DOCUMENTS: Final = {"gcp-tpu:index:QueuedResource": ("metadata", "gemma-serving-document")}
"""Inputs with a JSON object that has `image`: the server of a TPU machine."""
_DIGEST: Final = re.compile(r"@sha256:[0-9a-f]{64}$")


def _check(resource: Resource, config: Config) -> Iterator[Answer]:
    del config
    for found in _images(resource):
        if is_unknown(found):
            yield not_known(resource, found)
        elif not isinstance(found.value, str) or not _DIGEST.search(found.value):
            name = str(found.value).partition("@")[0]
            yield violation(
                resource,
                found,
                "an image must end with @sha256: and 64 hexadecimal digits, because a tag can change its content",
                f"replace the tag with the digest that `docker buildx imagetools inspect {name}` prints, as {_without_tag(name)}@sha256:DIGEST",
            )


def _images(resource: Resource) -> Iterator[Found]:
    if resource.type in IMAGES:
        yield from found_at(resource.inputs, *IMAGES[resource.type])
    if resource.type in DOCUMENTS:
        for document in found_at(resource.inputs, *DOCUMENTS[resource.type]):
            yield from _image_of(document)


def _image_of(document: Found) -> Iterator[Found]:
    """Yield the image of a serving document. A document that is not a JSON object has none; the agent rejects it."""
    if is_unknown(document):
        yield document
        return
    try:
        content = cast("Value", json.loads(str(document.value)))
    except ValueError:
        return
    for found in found_at(content, "image"):
        yield Found(f"{document.path}.{found.path}", found.value)


def _without_tag(name: str) -> str:
    """Return an image's name without its tag. A colon before the last slash belongs to a port."""
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}"


RULE: Final = Rule(
    name="image-by-digest",
    description="Containers of Cloud Run and of TPU machines name their image by digest.",
    check=_check,
    own_settings={},
)
