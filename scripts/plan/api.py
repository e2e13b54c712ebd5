"""Public interface of `scripts.plan` for other commands: the settings file of a solution, changed settings, and the keys of `--set`."""

from gemma_serving.scripts.plan.plan_options import given_options
from gemma_serving.scripts.plan.question import changes_of_file
from gemma_serving.scripts.plan.set_option import set_keys
from gemma_serving.scripts.plan.solve import nothing_is_enough
from gemma_serving.scripts.plan.stack_text import StackFile, new_file, write_copy, write_stack

__all__ = [
    "StackFile",
    "changes_of_file",
    "given_options",
    "new_file",
    "nothing_is_enough",
    "set_keys",
    "write_copy",
    "write_stack",
]
