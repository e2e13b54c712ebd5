"""A real Kubernetes control plane and the real provider of Pulumi, which judge the objects of the GKE targets."""
