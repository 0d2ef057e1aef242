"""ARC-AGI tasks, their augmentations and the token batches made of them; no torch."""
