"""Shared coefficients: one law for several architectures, some coefficients own.

Separate fits of a five-parameter law to few runs each are ill-determined. Sharing what the data
share (the floor E, the data term B, beta) leaves one question to the runs: how much an architecture
changes the rest. Rows say which architecture they are of by a number 0, 1, ... in the column
`group`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from analysis.fitting.law import Law, LawProblem
from analysis.laws.sum_of_powers import SumOfPowers

Array = NDArray[np.float64]


class SharedCoefficients(Law):
    """A sum of powers whose parameters in `own` are fitted for each group, named like A[memory].

    Bounds of the law are kept; those of an own parameter hold in every group.

    Example:
        >>> from analysis.laws.chinchilla import CHINCHILLA
        >>> law = SharedCoefficients(CHINCHILLA, own=["A"], groups=("dense", "memory"))
        >>> law.parameter_names
        ('B', 'E', 'alpha', 'beta', 'A[dense]', 'A[memory]')
        >>> law.inputs
        ('params', 'tokens', 'group')
    """

    may_be_zero: tuple[str, ...]

    def __init__(self, law: SumOfPowers, *, own: Sequence[str], groups: Sequence[str]) -> None:
        unknown = set(own) - set(law.parameter_names)
        if unknown or not own:
            names = ", ".join(law.parameter_names)
            raise ValueError(
                f"own: must name parameters of {law.name} ({names}), "
                f"got {sorted(unknown) or 'none'}"
            )
        if len(set(groups)) < 2 or len(set(groups)) < len(groups):
            raise ValueError(f"groups: must be two or more different names, got {list(groups)}")
        for term in law.terms:
            split = set(term.powers) & set(own)
            if split and term.amplitude not in own:
                # With exponents of its own, an amplitude at N = 1 is an extrapolation over decades.
                raise ValueError(
                    f"own: {', '.join(sorted(split))} needs {term.amplitude} too, because a shared "
                    "amplitude with different exponents depends on the unit of size"
                )
        self._law, self._groups = law, tuple(groups)
        self.name = f"{law.name}_by_group"
        self.equation = f"{law.equation}; {', '.join(own)} per group"
        self.source = law.source
        self.inputs = (*law.inputs, "group")
        self.may_be_zero = (*law.may_be_zero, "group")
        shared = [p for p in law.parameters if p.name not in own]
        self.parameters = tuple(shared) + tuple(
            replace(p, name=f"{p.name}[{g}]")
            for g in groups
            for p in law.parameters
            if p.name in own
        )
        place = {p.name: i for i, p in enumerate(self.parameters)}
        self._columns = [
            np.asarray([place.get(n, place.get(f"{n}[{g}]", -1)) for n in law.parameter_names])
            for g in groups
        ]
        theirs = {p.name: p.name.split("[")[0] for p in self.parameters}
        self.example = {mine: law.example[name] for mine, name in theirs.items()}
        self.bounds = MappingProxyType(
            {mine: law.bounds[name] for mine, name in theirs.items() if name in law.bounds}
        )

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups, in the order of their numbers."""
        return self._groups

    def features(self, inputs: Mapping[str, Array]) -> Array:
        """Return the law's features and the group of each run."""
        group = np.asarray(inputs["group"], dtype=np.float64)
        if not np.isin(group, np.arange(len(self._groups))).all():
            raise ValueError(
                f"group: must be 0..{len(self._groups) - 1} ({', '.join(self._groups)}), "
                f"got {sorted(set(group))}"
            )
        return np.vstack([self._law.features(inputs), group])

    def centre(self, features: Array) -> Array:
        """Return the law's centre; groups keep their numbers."""
        return np.append(self._law.centre(features[:-1]), 0.0)

    def log_values(self, features: Array, theta: Array) -> Array:
        """Return every run's value by its own group's parameters."""
        values = np.empty((len(theta), features.shape[1]))
        for rows, columns in self._parts(features):
            values[:, rows] = self._law.log_values(features[:-1, rows], theta[:, columns])
        return values

    def log_jacobian(self, features: Array, theta: Array) -> Array:
        """Return derivatives; those by another group's parameters are zero."""
        J = np.zeros((len(theta), theta.shape[1], features.shape[1]))
        for rows, columns in self._parts(features):
            part = self._law.log_jacobian(features[:-1, rows], theta[:, columns])
            J[:, columns[:, None], rows[None, :]] = part
        return J

    def uncentre(self, theta: Array, centre: Array) -> Array:
        """Move each group's parameters; shared ones move alike in all."""
        moved = theta.copy()
        for columns in self._columns:
            moved[:, columns] = self._law.uncentre(theta[:, columns], centre[:-1])
        return moved

    def starts(self, problem: LawProblem) -> Array:
        """Return the law's own starts for all runs together, the same for every group."""
        features = problem.features
        together = _Without(problem, features[:-1])
        starts = self._law.starts(together)
        theta = np.zeros((len(starts), len(self.parameters)))
        for columns in self._columns:
            theta[:, columns] = starts
        return theta

    def _parts(self, features: Array) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        return [
            (np.flatnonzero(features[-1] == g), columns) for g, columns in enumerate(self._columns)
        ]


class _Without(LawProblem):
    """A problem as the law without groups sees it, as far as its starts need."""

    def __init__(self, problem: LawProblem, features: Array) -> None:
        self.features, self.log_y = features, problem.log_y
