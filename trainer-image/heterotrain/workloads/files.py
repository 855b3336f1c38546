"""A user's own data: arrays, a text, or a folder of images. Item `i` is the same on every worker with the same files.

Files of type .npy are mapped, not read, so they may be larger than the memory. No file is unpickled. Images are
numbered by their sorted names.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from numpy.typing import NDArray
from collections.abc import Iterable
from typing import Literal

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


class TextFile(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Tokens (length,) and those that follow them (length,), as int64; item `i` begins at token `i * length`.

    The last piece is left out if it is shorter.
    """

    def __init__(self, path: str | Path, *, length: int = 64, tokens: Literal["bytes", "characters"] = "bytes") -> None:
        """`length` is in tokens. The vocabulary is 256 bytes, or the characters that occur, in the order of Unicode.

        Raises OSError if the file cannot be read, ValueError if it holds fewer than `length + 1` tokens, or is not
        UTF-8 though characters are asked for.
        """
        file = Path(path)
        content = file.read_bytes()
        self.length = length
        self._characters = ""
        if tokens == "characters":
            try:
                text = content.decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"{file}: is not UTF-8 ({error}); take its bytes") from error
            self._characters = "".join(sorted(set(text)))
            number = {character: position for position, character in enumerate(self._characters)}
            self._tokens = torch.tensor([number[character] for character in text], dtype=torch.int64)
        elif content:
            self._tokens = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        else:
            self._tokens = torch.empty(0)
        if len(self._tokens) <= length:
            raise ValueError(f"{file}: expected at least {length + 1} tokens, found {len(self._tokens)}")

    @property
    def vocabulary(self) -> int:
        """How many different tokens there can be."""
        return len(self._characters) or 256

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; bytes that are no UTF-8 show as U+FFFD."""
        if self._characters:
            return "".join(self._characters[token] for token in tokens)
        return bytes(tokens).decode(errors="replace")

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"index: expected 0 to {len(self) - 1}, found {index}")
        start = index * self.length
        piece = self._tokens[start : start + self.length + 1].to(torch.int64)
        return piece[:-1], piece[1:]


class ArrayFiles(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Rows of two arrays of one length.

    Fractions come in torch's default type, integers as int64; bytes (uint8) of inputs are taken for pixels and come in
    [0, 1].
    """

    def __init__(
        self, inputs: str | Path, targets: str | Path | None = None, *, names: tuple[str, str] = ("inputs", "targets")
    ) -> None:
        """One .npz file that holds arrays of these `names`, or two .npy files.

        Raises OSError if a file cannot be read, ValueError, naming the file, if it is no such file, an array is
        missing, or their lengths differ.
        """
        paths = (Path(inputs), Path(inputs if targets is None else targets))
        for path in paths:
            wanted = ".npz" if targets is None else ".npy"
            if path.suffix != wanted:
                raise ValueError(f"{path}: expected one .npz file, or .npy files for inputs and targets")
        self.inputs, self.targets = (_load(path, name) for path, name in zip(paths, names, strict=True))
        self._dtype = torch.get_default_dtype()
        if self.inputs.ndim < 1 or self.inputs.shape[:1] != self.targets.shape[:1]:
            raise ValueError(
                f"{paths[1]}: targets of shape {self.targets.shape} do not go with inputs of shape {self.inputs.shape}"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        pixels = self.inputs.dtype == "uint8"
        row = self._tensor(self.inputs[index])
        return row.to(self._dtype) / 255 if pixels else row, self._tensor(self.targets[index])

    def _tensor(self, row: Any) -> torch.Tensor:
        # A copy: the row may be mapped from a file, and then belongs to it.
        tensor = torch.tensor(row)
        return tensor.to(self._dtype if tensor.is_floating_point() else torch.int64)


def _load(path: Path, name: str) -> NDArray[Any]:
    import numpy  # noqa: PLC0415 - models and synthetic data work without it

    try:
        loaded = numpy.load(path, mmap_mode="r" if path.suffix == ".npy" else None)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    array: NDArray[Any]
    if path.suffix == ".npy":
        array = loaded
    else:
        with loaded:
            if name not in loaded:
                raise ValueError(f"{path}: holds no array {name!r}; it has {', '.join(loaded.files) or 'none'}")
            array = loaded[name]
    return array
