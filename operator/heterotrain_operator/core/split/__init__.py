"""Arithmetic of splits: whole samples under bounds, level filling, passes, and the best split in hindsight."""
