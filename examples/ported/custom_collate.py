"""Tell which of two tokens is the more frequent in sequences of any length, loaded by processes of their own."""

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import heterotrain

EPOCHS = 3


def sequences(samples: int, seed: int) -> list[tuple[torch.Tensor, int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, 25, (samples,), generator=generator).tolist()
    tokens = [torch.randint(1, 6, (length,), generator=generator) for length in lengths]
    return [(sequence, int((sequence == 1).sum() > (sequence == 2).sum())) for sequence in tokens]


def pad(samples: list[tuple[torch.Tensor, int]]) -> dict[str, torch.Tensor]:
    tokens, labels = zip(*samples, strict=True)
    return {"tokens": pad_sequence(list(tokens), batch_first=True), "labels": torch.tensor(labels)}


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 16, padding_idx=0)
        self.head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens).sum(1))


session = heterotrain.join(epochs=EPOCHS)
torch.manual_seed(0)
loader = DataLoader(sequences(1000, 0), batch_size=50, shuffle=True, num_workers=2, collate_fn=pad)
model = Counter()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
model, optimizer, loader = session.prepare(model, optimizer, loader)

for batch in loader:
    loss = session.scale(nn.functional.cross_entropy(model(batch["tokens"]), batch["labels"]))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

test = pad(sequences(200, 1))
with torch.no_grad():
    correct = (model(test["tokens"]).argmax(1) == test["labels"]).sum().item()
if session.leader:
    print(f"custom collate: {correct} of 200 test sequences right")
