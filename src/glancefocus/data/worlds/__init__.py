"""Built-in worlds: data sets that are drawn from a seed."""
