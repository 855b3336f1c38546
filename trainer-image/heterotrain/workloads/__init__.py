"""Models and data of the papers' kind, small enough for any machine; real data where a library bundles it."""
