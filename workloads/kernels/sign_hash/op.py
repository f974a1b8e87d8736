"""The one entry to hashing by signs."""

from jaxtyping import Float, Int
from torch import Tensor

from workloads.kernels.sign_hash import reference


def sign_hash(
    z: Float[Tensor, "tokens chunks bits"], *, temperature: float, times_l1: bool
) -> tuple[Int[Tensor, "tokens chunks"], Float[Tensor, "tokens chunks"]]:
    """Return the row that each chunk's signs name, and the chunk's score (`reference.sign_hash`)."""
    return reference.sign_hash(z, temperature=temperature, times_l1=times_l1)
