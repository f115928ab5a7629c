"""Pictures, data sets and the built-in worlds."""
