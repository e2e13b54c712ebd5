"""Settings, plan, resources and outputs of a stack."""

import os

# To find plugins, which no block has, pydantic would read the entry points of every installed package: 4 % of `gemma plan STACK`.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
