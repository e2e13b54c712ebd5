"""Access of scripts to Pulumi: the engine's command line, and a stack's outputs and state."""
