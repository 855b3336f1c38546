"""Teach a small GPT-2 to walk over a graph: what a transformers.Trainer holds, alone or as workers of a job."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import heterotrain
from heterotrain.integrations.transformers import train
from heterotrain.workloads.synthetic import SyntheticTokens

session = heterotrain.join(epochs=2)
torch.manual_seed(0)
training, testing = [
    [{"input_ids": tokens, "labels": tokens} for tokens, _ in SyntheticTokens(samples, length=32, train=train_set)]
    for samples, train_set in ((1024, True), (128, False))
]
config = GPT2Config(vocab_size=64, n_positions=32, n_embd=64, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None)
arguments = TrainingArguments(
    output_dir="out/transformers",
    per_device_train_batch_size=32,
    learning_rate=1e-2,
    warmup_steps=5,
    eval_strategy="epoch",
    report_to="none",
)
trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=training, eval_dataset=testing)

train(session, trainer)  # was: trainer.train()

if session.leader:
    print(f"step {session.step}: loss {session.metrics['eval_loss']:.3f} per token of the test set")
