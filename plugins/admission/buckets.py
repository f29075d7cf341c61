"""Token buckets, one set for each tenant, forgotten as soon as they are full again.

A bucket holds ``size`` and fills at ``rate`` a second; what is admitted takes its cost out
of it (the leaky bucket as a meter, ITU-T I.371). A full bucket says no more than none at
all, so memory is bounded by what was used lately, whatever number of tenants came by.
"""

from dataclasses import dataclass
from typing import Final

SWEEP: Final = 2
"""Remembered tenants looked at in every call: more than come new, so the full ones go."""
ROUNDING: Final = 1e-6
"""Of a token: who waited exactly as long as told is not sent away for a rounding error."""


@dataclass(slots=True)
class Bucket:
    """What one tenant may still use of one thing."""

    rate: float
    """That flow back in a second."""
    size: float
    level: float
    at: float
    """When the level was last worked out."""

    def refill(self, now: float) -> None:
        """Bring the level up to date; time never runs back."""
        if now > self.at:
            self.level = min(self.size, self.level + (now - self.at) * self.rate)
            self.at = now

    def wait(self, cost: float) -> float:
        """Seconds until it holds ``cost``."""
        return max(cost - self.level - ROUNDING, 0.0) / self.rate

    def take(self, cost: float) -> None:
        """Use some."""
        self.level -= cost

    def give_back(self, amount: float) -> None:
        """Some was not used after all."""
        self.level = min(self.size, self.level + amount)

    @property
    def full(self) -> bool:
        return self.level >= self.size


class Tenants:
    """Buckets by tenant and by what they meter. Every call costs the same."""

    def __init__(self, max_tenants: int) -> None:
        self._max = max_tenants
        self._of: dict[str, dict[str, Bucket]] = {}
        """Those used longest ago come first."""

    def __len__(self) -> int:
        return len(self._of)

    def get(self, tenant: str) -> dict[str, Bucket]:
        """A tenant's buckets as they are remembered; empty when all were full."""
        return self._of.get(tenant, {})

    def keep(self, tenant: str, buckets: dict[str, Bucket]) -> None:
        """Remember what a tenant has left, and forget others that have everything.

        Past ``max_tenants`` whoever was quiet for longest is forgotten, full or not.
        """
        self._of.pop(tenant, None)
        self._of[tenant] = buckets
        now = max(bucket.at for bucket in buckets.values())
        for _ in range(SWEEP):
            oldest = next(iter(self._of))
            if oldest == tenant:
                return
            held = self._of[oldest]
            for bucket in held.values():
                bucket.refill(now)
            if len(self._of) <= self._max and not all(bucket.full for bucket in held.values()):
                return
            del self._of[oldest]
