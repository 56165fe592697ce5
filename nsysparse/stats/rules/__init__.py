"""One module an analysis rule of nsys; each holds a ``REPORT``."""
