"""A planned server as Kubernetes objects for a GKE cluster that somebody else owns. Pure: no cluster, no network, no clock."""
