"""The lines of a stack's server: what Cloud Logging has of its container or its machine."""
