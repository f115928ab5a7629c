"""Runtimes: who computes the parts of a network. The loop does not know which one it runs on."""
