"""Prometheus' own rule engine as a child process: the program in `golang`, its build, and its protocol."""
