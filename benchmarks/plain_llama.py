"""A Llama-style model in plain torch, and its training step: the peer of our training loop.

Nothing of memscale is used. Blocks and head are compiled, attention is torch's fused one, AdamW is
fused, weights are fp32 under bf16 autocast, gradients are clipped. With `graph` the whole step is
replayed as one CUDA graph.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a model and of its batches."""

    d_model: int
    n_layers: int
    n_heads: int
    d_ff: int
    vocab_size: int
    batch_tokens: int
    seq_len: int

    @property
    def matrix_params(self) -> int:
        """Parameters that are multiplied, the head among them."""
        block = 4 * self.d_model**2 + 3 * self.d_model * self.d_ff
        return self.n_layers * block + self.d_model * self.vocab_size

    @property
    def flops_per_token(self) -> float:
        """FLOPs of forward and backward per token: 6 N + attention, its causal half counted."""
        return 6.0 * self.matrix_params + 6.0 * self.n_layers * self.seq_len * self.d_model


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, 1e-5)


class PlainBlock(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.n_heads, d, m = shape.n_heads, shape.d_model, shape.d_ff
        self.norms = nn.ModuleList([Norm(d), Norm(d)])
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.gate_up = nn.Linear(d, 2 * m, bias=False)
        self.down = nn.Linear(m, d, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        batch, seq, d = x.shape
        heads = self.qkv(self.norms[0](x)).view(batch, seq, 3, self.n_heads, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            turned(q, cosine, sine), turned(k, cosine, sine), v, is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, seq, d))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1).to(x.dtype)


class PlainLlama(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d_head = shape.d_model // shape.n_heads
        self.embedding = nn.Embedding(shape.vocab_size, shape.d_model)
        self.blocks = nn.ModuleList(PlainBlock(shape) for _ in range(shape.n_layers))
        self.norm = Norm(shape.d_model)
        self.head = nn.Linear(shape.d_model, shape.vocab_size, bias=False)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
        frequencies = 1e4 ** (-torch.arange(0, d_head, 2) / d_head)
        angles = torch.outer(torch.arange(shape.seq_len), frequencies)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def compile_parts(self) -> None:
        for block in self.blocks:
            block.compile(dynamic=False, fullgraph=True)
        self.loss_of = torch.compile(self._loss_of, dynamic=False)

    def _loss_of(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def forward(self, windows: Tensor) -> Tensor:
        x = self.embedding(windows[:, :-1]).to(torch.bfloat16)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        return self.loss_of(x, windows[:, 1:])


def plain_step(shape: Shape, *, graph: bool) -> Callable[[], object]:
    """Return what takes one optimizer step on random tokens, on the current CUDA stream."""
    here = torch.device("cuda")
    model = PlainLlama(shape).to(here)
    model.compile_parts()
    adamw = torch.optim.AdamW(
        model.parameters(), lr=torch.tensor(1e-3, device=here), fused=True, capturable=True
    )
    rows = shape.batch_tokens // shape.seq_len
    windows = torch.randint(shape.vocab_size, (rows, shape.seq_len + 1), device=here)

    def step() -> None:
        with (
            torch.autocast("cuda", torch.bfloat16),
            sdpa_kernel(BACKENDS, set_priority=True),
        ):
            loss = model(windows)
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad(set_to_none=True)

    if not graph:
        return step
    for _ in range(4):
        step()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=torch.cuda.current_stream()):
        step()

    def replay() -> None:
        # `step` holds the model and the batch, whose addresses are fixed in the graph.
        assert step is not None
        captured.replay()

    return replay
