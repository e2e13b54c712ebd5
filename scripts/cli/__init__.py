"""Command-line framework: options as dataclasses, uniform exits, help, tables and progress."""
