"""`python -m scripts.batch`: a file of requests to a private server, resumable."""
