"""Gradients: of several passes, weighted, summed over the workers."""
