"""Predict the next character of a text: the source of a module of Python's library, which needs no download."""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import heterotrain

EPOCHS = 2
LENGTH = 32


class Text(Dataset):
    """Pieces of a text, each with the characters that follow its own."""

    def __init__(self, text: str) -> None:
        self.alphabet = sorted(set(text))
        numbers = {character: number for number, character in enumerate(self.alphabet)}
        self.tokens = torch.tensor([numbers[character] for character in text])

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        piece = self.tokens[index * LENGTH : (index + 1) * LENGTH + 1]
        return piece[:-1], piece[1:]


class LanguageModel(nn.Module):
    def __init__(self, characters: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, characters)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(self.embedding(tokens))[0])


session = heterotrain.join(epochs=EPOCHS)
torch.manual_seed(0)
text = Text(Path(argparse.__file__).read_text()[:32000])
loader = DataLoader(text, batch_size=32, shuffle=True)
model = LanguageModel(len(text.alphabet))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer, loader = session.prepare(model, optimizer, loader)

for inputs, targets in loader:
    loss = session.scale(nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()

with torch.no_grad():
    inputs, targets = next(iter(DataLoader(text, batch_size=200)))
    loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
if session.leader:
    print(f"language model: loss {loss:.3f} per character")
