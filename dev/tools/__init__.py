"""Set-up of the Pulumi engine and of the environment, and the site."""
