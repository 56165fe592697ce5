"""Write docs/rules.md from the rules' own text."""

from pathlib import Path

from nsysparse.rules import load_rules
from nsysparse.rules._pages import document

if __name__ == "__main__":
    (Path(__file__).parent / "rules.md").write_text(document(load_rules()), encoding="utf-8")
