"""Who meets, who convenes and which attempt comes next: pure decisions; `machine.py` describes the protocol."""
