"""Preview, confirm and deploy a stack."""
