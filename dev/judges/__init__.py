"""Judges of the project: real parts, published measurements and Google's compiler. They import anything, and nothing imports them."""
