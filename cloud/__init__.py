"""How scripts talk to Google Cloud: REST calls, the search for resources of this product, and the copy of weights into a bucket."""
