"""A small GPT: the decoder of GPT-2 in plain PyTorch, of any size.

Layers are normalised before use, embeddings are learnt and shared with the output, as in GPT-2: with its smallest
published sizes (vocabulary 50,257, context 1,024, width 768, depth 12) it has 124,439,808 parameters. Dropout is left
out, because its random numbers would depend on how the batch is split. Source: Radford et al., "Language Models are
Unsupervised Multitask Learners" (2019), section 2.3.

The bundled sequences have one fixed length, so that the mean over a batch's tokens is the mean over its samples; losses
of padded ones, whose samples have unequal numbers of tokens, are weighted by a count.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import nn
from torch.nn import functional

_DEVIATION = 0.02


class _Block(nn.Module):
    """Causal self-attention and a layer of four times the width, each added to what it read."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.norm_hidden = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, 4 * width)
        self.hidden_out = nn.Linear(4 * width, width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(n, length, width) -> the same."""
        samples, length, width = states.shape
        parts = self.queries_keys_values(self.norm_attention(states)).split(width, dim=-1)
        queries, keys, values = (
            part.view(samples, length, self.heads, width // self.heads).transpose(1, 2) for part in parts
        )
        seen = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        states = states + self.attention_out(seen.transpose(1, 2).reshape(samples, length, width))
        hidden = functional.gelu(self.hidden(self.norm_hidden(states)), approximate="tanh")
        next_states: torch.Tensor = states + self.hidden_out(hidden)
        return next_states


class GPT(nn.Module):
    """A language model over `vocabulary` tokens; sequences hold at most `context` of them."""

    def __init__(
        self, vocabulary: int = 256, *, context: int = 64, width: int = 64, depth: int = 2, heads: int = 4
    ) -> None:
        """`width` is the states' size, a multiple of `heads`. Raises ValueError if it is not."""
        super().__init__()
        if width % heads:
            raise ValueError(f"width: must be a multiple of the {heads} heads, found {width}")
        self.context = context
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=_DEVIATION)
        for name, parameter in self.named_parameters():
            # What is added to the residual stream shrinks with the number of additions (section 2.3).
            if name.endswith("_out.weight"):
                nn.init.normal_(parameter, std=_DEVIATION / sqrt(2 * depth))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(n, length) token numbers -> (n, length, vocabulary) logits of each next token.

        Raises ValueError for a sequence longer than the context.
        """
        length = tokens.shape[-1]
        if length > self.context:
            raise ValueError(f"tokens: sequences of at most {self.context}, found {length}")
        states = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        return functional.linear(self.norm(self.blocks(states)), self.tokens.weight)


def next_token_loss(logits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy in nats over all tokens of a batch of sequences of one length.

    Shapes (n, length, vocabulary) and (n, length). Samples weigh alike, as a mean over samples must have it.
    """
    return functional.cross_entropy(logits.flatten(0, 1), following.flatten())
