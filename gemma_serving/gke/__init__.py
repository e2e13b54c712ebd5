"""A planned server as Kubernetes objects for a GKE cluster of another owner. Pure: no cluster, no network, no clock."""
