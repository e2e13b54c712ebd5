"""Settings of a stack: one frozen dataclass for each block of its file, with limits and the effect of a change at each field.

A settings file is parsed into them (`stacks.settings`), the planner's question holds them as they are, and a component takes its own.
`planning.settings.fields` walks over them: keys of `--set`, checks, and pages.
"""
