"""A bundle: one folder that can answer, and everything that reads, writes and publishes it."""
