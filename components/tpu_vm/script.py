"""Joins the agent's modules to the one program that the virtual machine runs."""

import ast
from functools import cache
from importlib.resources import files

METADATA_VALUE_LIMIT_BYTES = 256 * 1024
"""Largest metadata value that Compute Engine accepts (256 KiB; Compute Engine, "About VM metadata", limitations)."""

MODULES = ("base", "document", "cloud", "weights", "containers", "phases", "serving", "entry")
"""In the order of their dependencies; the last one starts the program."""

HEADER = '''#!/usr/bin/env python3
"""Start-up script of a TPU virtual machine that serves one model with vLLM: the same for every deployment.

Run without arguments (so the guest environment runs it at every boot) it starts itself as a systemd unit and returns.
Run as `agent` it runs the serving document of the metadata key `gemma-serving-document` as a container, follows the
key's changes, and publishes what it is doing as guest attributes in the namespace `gemma-serving`.

Needs Python 3.10, systemd and docker. Nothing secret is logged, published or put on a command line.
"""
'''


@cache
def startup_script() -> str:
    """Return the text for the metadata key `startup-script`: a Python 3.10 program with a shebang, always the same.

    What differs between deployments is the serving document, which the program follows.
    """
    folder = files("components.tpu_vm.agent")
    sections = (_section(name, folder.joinpath(f"{name}.py").read_text(encoding="utf-8")) for name in MODULES)
    return "\n\n".join([HEADER.rstrip("\n"), *sections]) + "\n"


def _section(name: str, source: str) -> str:
    """Turn a module into a section: its docstring a heading, its imports of other sections left out."""
    tree = ast.parse(source)
    docstring = tree.body[0]
    left_out: set[int] = set(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("components."):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    kept = [line for number, line in enumerate(source.splitlines(), start=1) if number not in left_out]
    heading = (ast.get_docstring(tree) or "").splitlines()[0]
    return f"# --- {name}: {heading}\n" + "\n".join(kept).strip("\n")
