"""Command lines: options as dataclasses, one way to end, one look of help, tables and progress."""
