"""Prerequisites of the resources: enabled APIs, effective grants, and free names."""
