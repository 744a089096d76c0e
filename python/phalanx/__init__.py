"""Phalanx fine-tunes Mixture-of-Experts language models: a C++20/CUDA engine with a Hugging Face face."""
