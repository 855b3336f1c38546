"""Data: which samples are whose, in which order, loaded, augmented and evaluated."""
