"""Generated parts of docs/planning.md."""

from planning.rules import RULES


def rules_table() -> str:
    """Return the table of all rules in Markdown, in the order in which findings are shown."""
    rows = (
        f"| {rule.id} | {' or '.join(rule.severities)} | {'yes' if rule.is_acceptable else 'no'} | {rule.what} | {rule.source} |"
        for rule in RULES.values()
    )
    head = ("| id | severity | can be accepted | what it finds | source |", "| --- | --- | --- | --- | --- |")
    return "\n".join((*head, *rows)) + "\n"
