"""Public interface of `scripts.plan` for other commands: the settings file of a solution, and the keys of `--set`."""

from gemma_serving.scripts.plan.plan_options import given_options
from gemma_serving.scripts.plan.set_option import set_keys
from gemma_serving.scripts.plan.solve import nothing_is_enough
from gemma_serving.scripts.plan.stack_text import StackFile, new_file, write_copy, write_stack

__all__ = ["StackFile", "given_options", "new_file", "nothing_is_enough", "set_keys", "write_copy", "write_stack"]
