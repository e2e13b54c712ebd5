"""Settings, plan, resources and outputs of a stack."""

import os

# No block has plugins. To find them, pydantic reads the entry points of every installed package: 4 % of `gemma plan STACK`.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
