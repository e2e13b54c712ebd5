"""Create the settings file for a new stack."""
