"""Pretrain a small GPT as nanoGPT does: random windows of one long text, micro-steps whose gradients accumulate, a
learning rate set by hand."""

import argparse
import math
from pathlib import Path

import torch
from torch import nn

BLOCK = 32
BATCH = 8
ACCUMULATION = 4
MAX_ITERATIONS = 60
WARM_UP = 6
LEARNING_RATE = 1e-2
iteration = 0

torch.manual_seed(0)
text = Path(argparse.__file__).read_text()[:32000]
alphabet = sorted(set(text))
tokens = torch.tensor([alphabet.index(character) for character in text])


def get_batch(starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The windows of the text that begin at these places, and the characters that follow each of theirs."""
    places = starts.unsqueeze(1) + torch.arange(BLOCK)
    return tokens[places], tokens[places + 1]


def learning_rate(iteration: int) -> float:
    """Rises linearly while warming up, then falls as a cosine to a tenth."""
    if iteration < WARM_UP:
        return LEARNING_RATE * (iteration + 1) / WARM_UP
    progress = (iteration - WARM_UP) / (MAX_ITERATIONS - WARM_UP)
    return LEARNING_RATE * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("future", torch.ones(BLOCK, BLOCK).triu(1).bool())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.before_attention(x)
        x = x + self.attention(y, y, y, attn_mask=self.future, need_weights=False)[0]
        return x + self.layers(self.before_layers(x))


class GPT(nn.Module):
    def __init__(self, characters: int, width: int = 32) -> None:
        super().__init__()
        self.meaning, self.position = nn.Embedding(characters, width), nn.Embedding(BLOCK, width)
        self.blocks = nn.Sequential(Block(width), Block(width), nn.LayerNorm(width), nn.Linear(width, characters))

    def forward(self, x: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """The mean loss per character."""
        logits = self.blocks(self.meaning(x) + self.position(torch.arange(BLOCK)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())


model = GPT(len(alphabet))
optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)

while True:
    for _ in range(ACCUMULATION):
        loss = model(*get_batch(torch.randint(len(tokens) - BLOCK, (BATCH,)))) / ACCUMULATION
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(iteration)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iteration += 1
    if iteration == MAX_ITERATIONS:
        break

with torch.no_grad():
    loss = model(*get_batch(torch.arange(0, len(tokens) - BLOCK, BLOCK)))
print(f"gpt pretraining: loss {loss:.3f} per character")
