"""Declare the product's serving image alone, built from the folder of the settings."""

import pulumi

from gemma_serving.components.serving_image import ServingImage, ServingImageArgs
from gemma_serving.contracts.labels import Ownership

settings = pulumi.Config()
image = ServingImage(
    "image",
    ServingImageArgs(
        project=settings.require("project"),
        locations=[settings.require("location")],
        repository_id=settings.require("repository"),
        upstream=settings.require("upstream"),
        digest=settings.require("digest"),
        ownership=Ownership(project="gemma-serving", stack=pulumi.get_stack()),
        labels={},
        readers={},
        build_context=settings.require("context"),
    ),
)
pulumi.export("ref", image.ref)
