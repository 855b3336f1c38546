"""A text of one's own as token sequences: its bytes or its characters, cut into pieces of one length."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import torch
from torch.utils.data import Dataset


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
