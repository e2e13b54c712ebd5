"""A text that says that it is a terminal: a person's input, or what is printed for one."""

import io


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
