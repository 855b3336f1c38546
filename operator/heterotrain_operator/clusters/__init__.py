"""The worlds that a job can live in, behind one port."""
