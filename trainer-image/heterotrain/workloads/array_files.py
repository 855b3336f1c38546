"""Arrays of one's own: inputs and targets in NumPy's .npz or .npy files, item `i` being row `i` of both.

Files of type .npy are mapped, not read, so that they may be larger than the memory. No file is unpickled.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
