"""Export: the parts of a network as graphs for other runtimes, with the loop as a program of its own beside them."""
