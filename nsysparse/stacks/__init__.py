"""Call stacks: who asked for this copy. Reading, decoding, folding, attributing and drawing them."""
