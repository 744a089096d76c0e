"""Batches as Transformers takes them, and the same tokens as Phalanx takes them: documents end to end, no padding."""

from dataclasses import dataclass, field

import torch

IGNORED = -100


@dataclass
class Batch:
    """`inputs` go to the Transformers model; `rows` say which positions are real and where documents end."""

    inputs: dict
    labels: torch.Tensor  # [B, S] not shifted, -100 where ignored
    real: torch.Tensor  # [B, S] bool
    lengths: list[int] = field(default_factory=list)  # of the documents, row by row

    def tokens(self):
        return self.inputs["input_ids"][self.real]

    def shifted_labels(self):
        """The token to predict at each real position; the last position of a document predicts nothing."""
        shifted = []
        start = 0
        labels = self.labels[self.real]
        for length in self.lengths:
            document = labels[start : start + length]
            shifted.append(torch.cat([document[1:], torch.tensor([IGNORED])]))
            start += length
        return torch.cat(shifted)


def _random_tokens(shape, vocab_size, generator):
    return torch.randint(0, vocab_size, shape, generator=generator)


def make_batch(kind, vocab_size, seed):
    generator = torch.Generator().manual_seed(seed)
    if kind == "one token":
        ids = _random_tokens((1, 1), vocab_size, generator)
        return Batch(dict(input_ids=ids), ids.clone(), torch.ones_like(ids, dtype=torch.bool), [1])
    if kind == "packed":
        return _packed([5, 1, 9, 2], vocab_size, generator)
    ids = _random_tokens((3, 11), vocab_size, generator)
    labels = ids.clone()
    labels[:, :2] = IGNORED  # a prompt
    real = torch.ones_like(ids, dtype=torch.bool)
    inputs = dict(input_ids=ids)
    if kind.endswith("padding"):
        for row, missing in enumerate([0, 4, 7]):
            pad = (
                slice(0, missing) if kind.startswith("left") else slice(ids.shape[1] - missing, ids.shape[1])
            )
            real[row, pad] = False
            labels[row, missing if kind.startswith("left") else 0] = IGNORED  # nothing real comes before it
        labels[~real] = IGNORED
        inputs["attention_mask"] = real.long()
    return Batch(inputs, labels, real, real.sum(1).tolist())


def _packed(lengths, vocab_size, generator):
    """One row of several documents, told apart by their position ids."""
    ids = _random_tokens((1, sum(lengths)), vocab_size, generator)
    labels = ids.clone()
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    labels[0, starts] = IGNORED  # or the document before would learn to predict this one
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    return Batch(
        dict(input_ids=ids, position_ids=positions), labels, torch.ones_like(ids, dtype=torch.bool), lengths
    )
