"""nsysparse: where did the GPU's time go, and who sent it there?"""

from nsysparse._version import __version__

__all__ = ["__version__"]
