"""Benchmarks of the engine against other systems in one run on one machine: `python -m phalanx bench`."""
