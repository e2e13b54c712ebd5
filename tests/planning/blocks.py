"""Blocks of settings: some values are stated, and the others are not set."""

import dataclasses
from functools import partial

from gemma_serving.planning.settings.question import NO_SERVICE, NO_TPU

tpu_block = partial(dataclasses.replace, NO_TPU)
service_block = partial(dataclasses.replace, NO_SERVICE)
