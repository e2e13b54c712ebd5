"""Google's project of a stack: its enabled APIs, recent grants, and free names."""
