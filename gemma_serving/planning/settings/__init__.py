"""Settings of a stack: one frozen dataclass for each block of its file, with limits and the effect of a change at each field.

Keys in the file are camelCase and quantities have a unit (`maxRunDuration: 4h`); here
they are numbers with the unit in the name (`max_run_duration_s`). pydantic converts one into the other in `reading`, checks blocks that a
program made, and writes their schema; `stored` reads a copy, with which pydantic_core does so alone. `fields` walks over the blocks without
it: keys of `--set`, effects, and values as text. The planner's input (`question`) holds the blocks as they are.
"""
