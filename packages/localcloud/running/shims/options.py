"""The options of the simulated commands."""

import argparse


def add_options(parser: argparse.ArgumentParser, *, flags: str = "", values: str = "", lists: str = "") -> None:
    """Add options, separated by blanks; names of one option are joined by `|`, as in `-d|--detach`.

    `flags` have no value, `values` one, `lists` can be repeated.
    """
    for option in flags.split():
        parser.add_argument(*option.split("|"), action="store_true")
    for option in values.split():
        parser.add_argument(*option.split("|"))
    for option in lists.split():
        parser.add_argument(*option.split("|"), action="append", default=[])
