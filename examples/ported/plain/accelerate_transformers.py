"""Teach a small BERT from scratch to tell whether most of a sequence's tokens are even, in a loop of accelerate's."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

EPOCHS = 3


def sequences(samples: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Fifteen tokens each, and whether most of them are even."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, 32, (samples, 15), generator=generator)
    labels = ((tokens % 2 == 0).sum(1) > 7).long()
    return [{"input_ids": each, "labels": label} for each, label in zip(tokens, labels, strict=True)]


torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
loader = DataLoader(sequences(1024, seed=1), batch_size=32, shuffle=True)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=32,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=16,
    )
)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
schedule = get_linear_schedule_with_warmup(optimizer, 10, EPOCHS * len(loader))
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

model.train()
for _ in range(EPOCHS):
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

model.eval()
test = torch.utils.data.default_collate(sequences(200, seed=2))
with torch.no_grad():
    right = (model(**test).logits.argmax(1) == test["labels"]).sum().item()
if accelerator.is_main_process:
    print(f"accelerate transformers: {right} of 200 test sequences right")
