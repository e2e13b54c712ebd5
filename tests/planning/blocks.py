"""Blocks of settings in which a test states some values and nobody set the others."""

import dataclasses
from functools import partial

from gemma_serving.planning.settings.deployment import NO_SERVICE, NO_TPU

tpu_block = partial(dataclasses.replace, NO_TPU)
service_block = partial(dataclasses.replace, NO_SERVICE)
