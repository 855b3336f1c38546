"""The backends that a job can run on, behind one port."""
