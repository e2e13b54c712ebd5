"""Load generator: processes that send requests on schedule and record the arrival of each response event."""
