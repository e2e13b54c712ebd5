"""Settings, plan, resources and outputs of a stack."""
