"""When to stop looking: rules, thresholds, budgets. Arithmetic only; nothing here uses a network."""
