"""How scripts talk to Pulumi: the engine's command line and a stack's outputs."""
