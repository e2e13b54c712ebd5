"""Copy a checkpoint into a bucket: in parts, several at a time, and so that a later run goes on where one was killed."""
