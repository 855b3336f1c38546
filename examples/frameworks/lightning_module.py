"""Recognise handwritten digits with a LightningModule, alone or as workers of a job."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader

import heterotrain
from heterotrain.integrations.lightning import fit
from heterotrain.workloads.digits import DigitsCNN, digits


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = DigitsCNN(16)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.model(images), labels)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        images, labels = batch
        self.log("accuracy", (self.model(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.Adam(self.parameters(), lr=2e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2)}


session = heterotrain.join(epochs=3)
torch.manual_seed(0)
training, testing = DataLoader(digits(), 64, shuffle=True), DataLoader(digits(train=False), 64)

# was: lightning.Trainer(max_epochs=3, gradient_clip_val=1.0).fit(Digits(), training, testing)
fit(session, Digits(), training, testing, gradient_clip_val=1.0)

if session.leader:
    print(f"step {session.step}: {session.metrics['accuracy']:.1%} of the test digits read correctly")
