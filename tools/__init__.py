"""Set-up of the Pulumi engine, and nothing else."""
