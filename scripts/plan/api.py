"""Public interface of `scripts.plan` for other commands: the settings file of a solution, pasted servers, changed settings, and the keys of `--set`."""

from gemma_serving.scripts.plan.pasted_question import Pasted, pasted
from gemma_serving.scripts.plan.plan_options import QuestionOptions, given_options
from gemma_serving.scripts.plan.question import changes_of_file, question_from
from gemma_serving.scripts.plan.set_option import set_keys
from gemma_serving.scripts.plan.solve import nothing_is_enough
from gemma_serving.scripts.plan.stack_text import StackFile, new_file, write_copy, write_stack

__all__ = [
    "Pasted",
    "QuestionOptions",
    "StackFile",
    "changes_of_file",
    "given_options",
    "new_file",
    "nothing_is_enough",
    "pasted",
    "question_from",
    "set_keys",
    "write_copy",
    "write_stack",
]
