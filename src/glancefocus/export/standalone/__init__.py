"""What is copied into exported folders: `predict.py`, which imports nothing else of this project."""
