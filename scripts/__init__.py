"""What a person runs after or beside `pulumi up`."""
