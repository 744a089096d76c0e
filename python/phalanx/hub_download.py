"""`python -m phalanx.hub_download ID`: fetches a model into the user's Hugging Face cache and prints its folder."""

from __future__ import annotations

import sys

# What a model folder is made of; never code and never pickled weights.
PATTERNS = [
    "*.json",
    "*.safetensors",
    "*.jinja",
    "tokenizer.model",
    "merges.txt",
    "vocab.txt",
    "LICENSE*",
    "README.md",
]


def main() -> int:
    model_id = sys.argv[1]
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        return fail(model_id, "the Python package huggingface_hub is missing", "pip install huggingface_hub")
    try:
        print(snapshot_download(model_id, allow_patterns=PATTERNS))
    except Exception as error:  # of the network, the hub or the disk: the library has no common base for them
        return fail(
            model_id,
            f"{type(error).__name__}: {first_sentence(error)}",
            "check the name and the network, or give a model folder",
        )
    return 0


def first_sentence(error: Exception) -> str:
    """The cause; the library goes on with advice of its own."""
    return str(error).strip().split("\n", 1)[0].split(". ", 1)[0].rstrip(".")


def fail(model_id: str, cause: str, cure: str) -> int:
    problem = f"{model_id}: no such folder, and the model cannot be fetched from the hub: {cause.strip()}"
    print(f"phalanx: error: {problem}; {cure}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
