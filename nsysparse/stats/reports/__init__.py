"""One module a report; each holds a ``REPORT``."""
