"""Tools for other languages of Pulumi programs: the generator of SDKs, and the YAML language host."""
