"""Operations of a decoding step in Triton (`reference` says what they are)."""

from workloads.kernels.decode_step.attention import attend
from workloads.kernels.decode_step.experts import experts, route
from workloads.kernels.decode_step.linear import gated, linear, swiglu
from workloads.kernels.decode_step.product_keys import choose

__all__ = ["attend", "choose", "experts", "gated", "linear", "route", "swiglu"]
