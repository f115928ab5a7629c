"""What the numbers say: accuracy per look, drawings, reports."""
