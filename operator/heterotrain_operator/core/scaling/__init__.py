"""How many workers of which group pay: what was measured at each size, what is tried next, and when that ends."""
