"""Google Cloud calls, the table of resource kinds, and searches that use it, for the program and the commands."""
