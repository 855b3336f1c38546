"""A simulated cluster behind the port: seeded, in virtual time, decided on by the same loop as real ones.

What happens in a simulation is a `Scenario` (`scenario.py`): values, each with its behaviour and with what files say
of it.
"""
