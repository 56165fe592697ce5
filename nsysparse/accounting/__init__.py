"""What was measured: every figure of every output is computed here, by the definitions of docs/definitions.md."""
