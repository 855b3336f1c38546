"""Images of one's own: a folder that holds one folder of images for each class.

Images are read when asked for and numbered by their sorted names, so every worker with the same files sees the same
item `i`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import Dataset

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"})


class ImageFolder(Dataset[tuple[torch.Tensor, int]]):
    """Images (3, size, size) in [0, 1], scaled without regard to their proportions, and the number of their class."""

    def __init__(self, folder: str | Path, *, size: int = 32, dtype: torch.dtype | None = None) -> None:
        """`size` is in pixels; `folder/cat/1.png` shows a `cat`, and classes are numbered by their sorted names.

        Raises ImportError without Pillow, FileNotFoundError without the folder, ValueError if a class or the folder
        holds no image.
        """
        try:
            import PIL.Image  # noqa: F401, PLC0415 - only image folders need Pillow
        except ImportError as error:
            raise ImportError(
                "image folders are read with Pillow, which is not installed: pip install pillow"
            ) from error
        root = Path(folder)
        if not root.is_dir():
            raise FileNotFoundError(f"{root}: no such folder")
        classes = sorted(child for child in root.iterdir() if child.is_dir())
        if not classes:
            raise ValueError(f"{root}: holds no folders; expected one of images for each class")
        self.class_names = tuple(child.name for child in classes)
        self.size = size
        self._dtype = dtype or torch.get_default_dtype()
        self._images: list[tuple[Path, int]] = []
        for label, child in enumerate(classes):
            found = sorted(path for path in child.rglob("*") if path.suffix.lower() in SUFFIXES)
            if not found:
                raise ValueError(f"{child}: holds no image; known are {', '.join(sorted(SUFFIXES))}")
            self._images += [(path, label) for path in found]

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Raises OSError, naming the file, if it is no image."""
        from PIL import Image  # noqa: PLC0415 - only image folders need Pillow

        path, label = self._images[index]
        with Image.open(path) as image:
            scaled = image.convert("RGB").resize((self.size, self.size))
        pixels = torch.frombuffer(bytearray(scaled.tobytes()), dtype=torch.uint8)
        return pixels.view(self.size, self.size, 3).permute(2, 0, 1).to(self._dtype) / 255, label
