"""The tokens of a measured step: random rows, or rows of chat data packed as the trainer packs them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from phalanx.errors import UserError

IGNORED = -100


@dataclass
class Batch:
    """Documents laid end to end, on the CPU: tokens [T]; labels [T], shifted; lengths of the documents in each row."""

    tokens: torch.Tensor
    labels: torch.Tensor
    rows: list[list[int]]

    @property
    def lengths(self) -> list[int]:
        return [length for row in self.rows for length in row]

    def padded(self, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """ids, unshifted labels, position ids [rows, width]; the rest of a row is one more document, without labels."""
        ids = torch.zeros(len(self.rows), width, dtype=torch.long)
        labels = torch.full_like(ids, IGNORED)
        positions = torch.zeros_like(ids)
        begin = 0
        for row, lengths in enumerate(self.rows):
            at = 0
            for length in lengths:
                end = begin + length
                ids[row, at : at + length] = self.tokens[begin:end]
                labels[row, at + 1 : at + length] = self.labels[begin : end - 1]
                positions[row, at : at + length] = torch.arange(length)
                begin, at = end, at + length
            positions[row, at:] = torch.arange(width - at)
        return ids, labels, positions


def random_batch(vocabulary: int, rows: int, length: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, (rows, length), generator=generator)
    labels = torch.cat([tokens[:, 1:], torch.full((rows, 1), IGNORED)], dim=1)
    return Batch(tokens.reshape(-1), labels.reshape(-1), [[length]] * rows)


def packed_batch(folder: Path, vocabulary: int, rows: int, length: int) -> Batch:
    """The first samples of a folder of `phalanx prepare`, in order, as many as fill `rows` rows of `length` tokens."""
    tokens, labels, packed = [], [], [[]]
    for sample, mask in samples(folder):
        if len(sample) > length:
            continue
        if sum(packed[-1]) + len(sample) > length:
            if len(packed) == rows:
                break
            packed.append([])
        packed[-1].append(len(sample))
        tokens.append(sample)
        labels.append(torch.cat([torch.where(mask[1:], sample[1:], IGNORED), torch.tensor([IGNORED])]))
    else:
        raise UserError(f"{folder}: has fewer samples than {rows} rows of {length} tokens take")
    batch = Batch(torch.cat(tokens), torch.cat(labels), packed)
    if int(batch.tokens.max()) >= vocabulary:
        raise UserError(f"{folder}: has token {int(batch.tokens.max())}, the model has {vocabulary}")
    return batch


def samples(folder: Path):
    """(tokens [n] int64, loss mask [n] bool) of each sample."""
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise UserError(f"{folder}: no token shards there; make them with `phalanx prepare`")
    for shard in shards:
        tensors = load_file(shard)
        offsets = tensors["offsets"].tolist()
        for begin, end in itertools.pairwise(offsets):
            yield tensors["tokens"][begin:end].long(), tensors["loss_mask"][begin:end].bool()
