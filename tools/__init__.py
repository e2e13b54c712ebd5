"""Set-up of the Pulumi engine, and selection of the test suites."""
