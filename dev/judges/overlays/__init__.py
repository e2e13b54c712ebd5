"""Google's manifests of Gemma 4, planned: what the product cannot express of them."""
