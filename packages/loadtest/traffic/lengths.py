"""Distributions of prompt and output lengths."""

import math
import random
from dataclasses import dataclass
from typing import Final, Literal

FORMS: Final = "uniform:min=100,max=2000, lognormal:mean=1000,std=400 or normal:mean=1000,std=100"
_NEEDED: Final = {"uniform": ("min", "max"), "lognormal": ("mean", "std"), "normal": ("mean", "std")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A distribution of lengths in tokens. Every drawn length is a whole number of at least 1."""

    kind: Literal["uniform", "lognormal", "normal"]
    mean: float
    """Mean of the distribution before it is cut at `least` and `most`."""
    std: float
    least: int = 1
    most: int | None = None

    @property
    def text(self) -> str:
        """The distribution in the option's format."""
        if self.kind == "uniform":
            return f"uniform:min={self.least},max={self.most}"
        ends = (f",min={self.least}" if self.least > 1 else "") + (f",max={self.most}" if self.most is not None else "")
        return f"{self.kind}:mean={self.mean:g},std={self.std:g}{ends}"

    def draw(self, rng: random.Random) -> int:
        """Return one length."""
        if self.kind == "uniform":
            return rng.randint(self.least, self.most or self.least)
        if self.kind == "normal":
            drawn = rng.gauss(self.mean, self.std)
        else:
            # `mean` and `std` describe the lengths, not their logarithms.
            variance = math.log(1 + (self.std / self.mean) ** 2)
            drawn = rng.lognormvariate(math.log(self.mean) - variance / 2, math.sqrt(variance))
        return max(self.least, min(round(drawn), self.most or round(drawn), 1 << 30))


def parse_lengths(text: str) -> Lengths:
    """Read `lognormal:mean=1000,std=400`. A ValueError's message completes the sentence "it must be ..."."""
    kind, _, rest = text.partition(":")
    values: dict[str, float] = {}
    for part in rest.split(","):
        name, _, raw = part.partition("=")
        try:
            values[name.strip()] = float(raw)
        except ValueError:
            raise ValueError(FORMS) from None
    needed = _NEEDED.get(kind, ())
    if (
        not needed
        or not set(needed) <= set(values) <= {*needed, "min", "max"}
        or not all(map(math.isfinite, values.values()))
    ):
        raise ValueError(FORMS)
    least = int(values.get("min", 1))
    most = int(values["max"]) if "max" in values else None
    if least < 1 or (most is not None and most < least) or values.get("std", 0.0) < 0 or values.get("mean", 1.0) < 1:
        raise ValueError(f"{FORMS}, with min of 1 or more, max of min or more, mean of 1 or more and std of 0 or more")
    if kind == "uniform" and most is not None:
        return Lengths(
            kind="uniform",
            mean=(least + most) / 2,
            std=math.sqrt(((most - least + 1) ** 2 - 1) / 12),
            least=least,
            most=most,
        )
    return Lengths(
        kind="normal" if kind == "normal" else "lognormal",
        mean=values["mean"],
        std=values["std"],
        least=least,
        most=most,
    )
