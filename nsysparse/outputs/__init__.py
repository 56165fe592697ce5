"""Writers of an analysis: one module a format."""
