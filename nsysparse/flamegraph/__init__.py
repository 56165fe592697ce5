"""Flame graphs: what sent the work, from the process down to the operation, in several formats."""
