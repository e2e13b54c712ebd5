"""Server logs of a stack in Cloud Logging, from its container or its TPU VM."""
