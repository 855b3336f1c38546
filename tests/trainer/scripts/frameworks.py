"""One full batch after the other, by a framework's own loop or in a session: both must train the same weights.

Saved with them is what the loop reported at its end: a learning rate, or what was measured on a validation set.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import heterotrain

SAMPLES = 32
STEPS = 12
PADDING = -100

parser = argparse.ArgumentParser()
parser.add_argument("framework", choices=["accelerate", "transformers", "lightning"])
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--own", action="store_true", help="train by the framework's own loop, without a session")
options = parser.parse_args()
name = os.environ.get("HETEROTRAIN_WORKER") or (f"rank-{os.environ['RANK']}" if "RANK" in os.environ else "alone")


def sequences() -> list[dict[str, torch.Tensor]]:
    """Eight tokens each, of which up to six are padding at the end."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, 16, (SAMPLES, 8), generator=generator)
    padded = torch.arange(8) >= torch.randint(2, 9, (SAMPLES, 1), generator=generator)
    return [
        {"input_ids": one, "labels": labels}
        for one, labels in zip(tokens, tokens.masked_fill(padded, PADDING), strict=True)
    ]


def token_loss(
    logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | None = None, **_: Any
) -> torch.Tensor:
    """As transformers' own, which computes in float32 whatever the model does."""
    count = (labels[:, 1:] != PADDING).sum() if num_items_in_batch is None else num_items_in_batch
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum") / count


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 16, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2}
    without = {"embd_pdrop": 0, "attn_pdrop": 0, "resid_pdrop": 0, "bos_token_id": None, "eos_token_id": None}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **without))
    model.loss_function = token_loss
    return model


def with_accelerate() -> tuple[nn.Module, float]:
    from transformers import get_linear_schedule_with_warmup

    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = get_linear_schedule_with_warmup(optimizer, 3, STEPS)
    loader = DataLoader(sequences(), batch_size=SAMPLES)
    given = (model, optimizer, loader, schedule)
    if options.own:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        model, optimizer, loader, schedule = accelerator.prepare(*given)
        epochs: Any = range(STEPS)
    else:
        from heterotrain.integrations.accelerate import Accelerator

        session = heterotrain.join(epochs=STEPS)
        accelerator = Accelerator(session)
        model, optimizer, loader, schedule = accelerator.prepare(*given, counted=True)
        epochs = session.epochs()
    model.train()
    for _ in epochs:
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                if options.own:
                    accelerator.backward(loss)
                else:
                    accelerator.backward(loss, (batch["labels"][:, 1:] != PADDING).sum())
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save_pretrained(options.out / "pretrained")
    accelerator.save(name, options.out / f"{name}.saved")
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return accelerator.unwrap_model(model), schedule.get_last_lr()[0]


def with_transformers() -> tuple[nn.Module, float]:
    from transformers import Trainer, TrainingArguments

    if not options.own:
        from heterotrain.integrations.transformers import train

    model = gpt2()
    arguments = TrainingArguments(
        str(options.out),
        per_device_train_batch_size=SAMPLES,
        num_train_epochs=STEPS,
        learning_rate=1e-2,
        warmup_steps=3,
        max_grad_norm=0.5,
        weight_decay=0.1,
        eval_strategy="epoch",
        per_device_eval_batch_size=SAMPLES,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model, arguments, train_dataset=sequences(), eval_dataset=sequences()[:9])
    if options.own:
        trainer.train()
        return model, trainer.evaluate()["eval_loss"]
    session = heterotrain.join(epochs=STEPS)
    train(session, trainer)
    assert trainer.state.global_step == STEPS
    return model, session.metrics["eval_loss"]


def with_lightning() -> tuple[nn.Module, float]:
    import lightning

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Embedding(16, 8), nn.Flatten(), nn.Linear(64, 16))

        def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return nn.functional.cross_entropy(self.layers(batch["input_ids"]), batch["input_ids"].sum(1) % 16)

        def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
            loss = self.loss(batch) * (1 + self.current_epoch / STEPS)
            self.log("training_loss", loss)
            return loss

        def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
            self.log("measured", self.loss(batch), prog_bar=True)

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 4)}

    module = Classifier()
    loader = DataLoader(sequences(), batch_size=SAMPLES)
    testing = DataLoader(sequences()[:9], batch_size=5)
    if options.own:
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=STEPS,
            gradient_clip_val=0.5,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, loader, testing)
        return module, trainer.callback_metrics["measured"].item()
    from heterotrain.integrations.lightning import fit

    session = heterotrain.join(epochs=STEPS)
    fit(session, module, loader, testing, gradient_clip_val=0.5)
    return module, session.metrics["measured"]


torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
train_with = {"accelerate": with_accelerate, "transformers": with_transformers, "lightning": with_lightning}
trained, reported = train_with[options.framework]()
torch.save(trained.state_dict() | {"reported": torch.tensor(reported)}, options.out / f"{name}.pt")
