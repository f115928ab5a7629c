"""Every table and figure of the paper: which networks are trained for it, and what is measured on them."""
