"""Benchmarks of the engine against other systems in one run on one machine: `python -m phalanx bench`."""

import os

# For every system alike, before torch reads it: without it the allocator holds on to a fifth more than it hands out.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
