"""``python -m nsysparse``."""

from nsysparse.cli import main

main()
