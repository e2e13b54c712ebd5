"""How scripts talk to Google Cloud: REST lists, the search for a stack's resources, and the copy of weights into a bucket."""
