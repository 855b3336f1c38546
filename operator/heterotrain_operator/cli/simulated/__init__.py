"""`heterotrain simulate`: run a scenario in virtual time, under one policy after the other."""
