"""What other commands may use of `scripts.plan`: the settings file of a stack that was found."""

from scripts.plan.solve import nothing_is_enough
from scripts.plan.stack_text import new_file, write_stack

__all__ = ["new_file", "nothing_is_enough", "write_stack"]
