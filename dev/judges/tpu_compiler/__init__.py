"""Google's TPU compiler as a judge: builds the server of a stack from released wheels, on a machine without a TPU."""
