"""Generated documentation of the rules."""

from planning.rules import RULES

_HEAD = """# Findings

Written by `make docs` from `planning/rules_memory.py` and `planning/rules_platform.py`.

`block` stops `pulumi preview` and `pulumi up`. `warn` and `info` are only shown.
`gemma-serving:acceptFindings: [ID, ...]` accepts findings: they are shown and stop nothing.
`python -m scripts.plan --stack NAME --fix` shows how to change the settings so that nothing blocks.

"""


def rules_page() -> str:
    """Return the page of all rules in Markdown."""
    return _HEAD + rules_table()


def rules_table() -> str:
    """Return the table of all rules in Markdown, in the order in which findings are shown."""
    rows = (
        f"| {rule.id} | {' or '.join(rule.severities)} | {'yes' if rule.is_acceptable else 'no'} | {rule.what} | {rule.source} |"
        for rule in RULES.values()
    )
    head = ("| id | severity | can be accepted | what it finds | source |", "| --- | --- | --- | --- | --- |")
    return "\n".join((*head, *rows)) + "\n"
