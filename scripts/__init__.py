"""Commands that a person or a workflow runs beside `pulumi`. Each is a module or a package: `python -m scripts.NAME --help`.

Libraries lie in `cli/` (command lines), `client/` (the served model), `cloud/` (Google's APIs) and `pulumi/` (engine and stack).
"""
