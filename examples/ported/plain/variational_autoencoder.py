"""Learn to draw handwritten digits with a variational autoencoder: noise in forward, and a loss that is a sum."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

EPOCHS = 8
HIDDEN = 4


class Autoencoder(nn.Module):
    def __init__(self, pixels: int, width: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, width), nn.ReLU(), nn.Linear(width, 2 * HIDDEN))
        self.decoder = nn.Sequential(nn.Linear(HIDDEN, width), nn.ReLU(), nn.Linear(width, pixels))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits of the pixels, drawn from a normal distribution of what is hidden, and its mean and log-variance."""
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        hidden = mean + torch.randn_like(mean) * torch.exp(log_variance / 2)
        return self.decoder(hidden), mean, log_variance


def loss_of(logits: torch.Tensor, mean: torch.Tensor, log_variance: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """The negative evidence lower bound, summed over the images (Kingma and Welling 2014, appendix B)."""
    reconstruction = nn.functional.binary_cross_entropy_with_logits(logits, images, reduction="sum")
    return reconstruction - (1 + log_variance - mean.pow(2) - log_variance.exp()).sum() / 2


torch.manual_seed(0)
images = torch.tensor(load_digits().data, dtype=torch.float32) / 16
loader = DataLoader(images[:1500], batch_size=50, shuffle=True)
model = Autoencoder(images.shape[1])
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

for _ in range(EPOCHS):
    for batch in loader:
        optimizer.zero_grad()
        loss = loss_of(*model(batch), batch)
        loss.backward()
        optimizer.step()

with torch.no_grad():
    bound = loss_of(*model(images[1500:]), images[1500:]) / 297
print(f"variational autoencoder: bound {bound:.2f} per test image")
