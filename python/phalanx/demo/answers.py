"""Questions to a model folder through Transformers alone."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from phalanx.demo.pairs import Pair

MAX_ANSWER_TOKENS = 64


def ask(model_folder: Path, questions: Sequence[str]) -> list[str]:
    """Greedy answers, all questions in one batch."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": q}], tokenize=False, add_generation_prompt=True
        )
        for q in questions
    ]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    inputs.pop("token_type_ids", None)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        generated = model.generate(**inputs, max_new_tokens=MAX_ANSWER_TOKENS, do_sample=False)
    return tokenizer.batch_decode(generated[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def count_right(pairs: Sequence[Pair], answers: Sequence[str]) -> int:
    """Answers that are right word for word, to the last character."""
    return sum(pair.answer == answer for pair, answer in zip(pairs, answers, strict=True))
