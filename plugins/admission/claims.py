"""Claims: what each admitted, unfinished request takes of something, and the sum."""


class Claims:
    """Amounts by request. Every call costs the same, however many there are."""

    def __init__(self) -> None:
        self.total = 0
        self._of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._of)

    @property
    def mean(self) -> float:
        """What a request claims on average; 1 where there is none."""
        return self.total / len(self._of) if self.total else 1.0

    def of(self, request_id: str) -> int:
        """What a request claims; 0 when it is unknown."""
        return self._of.get(request_id, 0)

    def add(self, request_id: str, amount: int) -> None:
        """A request was admitted."""
        self._of[request_id] = amount
        self.total += amount

    def drop(self, request_id: str) -> int:
        """It was released. :return: what it claimed; 0 when it is unknown"""
        amount = self._of.pop(request_id, 0)
        self.total -= amount
        return amount
