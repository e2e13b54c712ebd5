"""The search for a deployment, and everything said about a plan."""
