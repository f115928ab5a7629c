"""Measures a bundle on labelled images: look records, curves, rivals and the verdict, drawings, the report."""
