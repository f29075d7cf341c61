"""The service account: what each tenant was given, in priced tokens by weight.

The virtual token counter of VTC (Sheng et al., Fairness in Serving Large Language Models,
OSDI 2024; arXiv 2401.00588): computing a prompt position costs the input price, each
generated token the output price, both divided by the tenant's weight. Only what is
computed counts: positions found in a cache are free, and those that a preemption lost are
not charged again.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from enginebay.errors import IntegrityError
from enginebay.hookspecs.scheduler import Grant, SequenceView

MAX_IDLE: Final = 4096
"""Tenants without a request that are remembered at most."""


@dataclass(slots=True, eq=False)
class Tenant:
    """Somebody who shares the engine."""

    name: str
    weight: float
    counter: float = 0.0
    """Service received, priced tokens by weight. Never falls."""
    num_sequences: int = 0
    """In the engine, waiting or running."""
    seats: int = 0


@dataclass(slots=True, eq=False)
class Account:
    """What one sequence has been charged for."""

    sequence: SequenceView
    tenant: Tenant
    num_prompt: int
    prompt: int = 0
    """Prompt positions that were charged, or came from a cache."""
    generated: int = 0
    seated: bool = False
    num_preemptions: int = 0
    """Of the sequence, when it took its seat."""


@dataclass(slots=True, eq=False)
class Service:
    """Counters by tenant, exact to the token; bounded, however many tenants come and go."""

    input_price: float
    output_price: float
    weights: Mapping[str, float]
    level: float = 0.0
    """Whoever begins to wait is lifted at least to here. Never falls."""
    tenants: dict[str, Tenant] = field(default_factory=dict)
    accounts: dict[int, Account] = field(default_factory=dict)
    """Of every sequence that was added or seen running, by id."""
    total_weight: float = 0.0
    """Of the tenants with a sequence in the engine."""
    num_seats: int = 0
    _idle: list[tuple[float, str]] = field(default_factory=list)
    """Tenants without a sequence, least counter first; may be out of date."""

    def enter(self, sequence: SequenceView) -> Account:
        """A sequence's account, opened if there is none."""
        account = self.accounts.get(sequence.id)
        if account is None:
            name = sequence.tenant
            tenant = self.tenants.get(name)
            if tenant is None:
                tenant = self.tenants[name] = Tenant(name, self.weights.get(name, 1.0))
            length = sequence.num_prompt
            done = min(sequence.num_computed, length)  # not 0: a forced start
            account = Account(sequence, tenant, length, done, sequence.num_generated)
            self.accounts[sequence.id] = account
            self.total_weight += 0.0 if tenant.num_sequences else tenant.weight
            tenant.num_sequences += 1
        return account

    def seat(self, sequence: SequenceView) -> None:
        """It runs."""
        account = self.enter(sequence)
        if not account.seated:
            account.seated = True
            account.num_preemptions = sequence.num_preemptions
            account.tenant.seats += 1
            self.num_seats += 1

    def unseat(self, account: Account) -> None:
        """It gave way, or ended."""
        if account.seated:
            account.seated = False
            account.tenant.seats -= 1
            self.num_seats -= 1

    def granted(self, sequence: SequenceView, grant: Grant, *, started: bool) -> None:
        """Charge what was just scheduled, the token that it draws included, and what was
        not foreseen before: accepted drafts, a start that the core forced."""
        account = self.accounts.get(sequence.id) or self.enter(sequence)
        begin = sequence.num_computed
        if started:  # what it begins with came from a cache
            account.prompt = max(account.prompt, min(begin, account.num_prompt))
            self.seat(sequence)
        end = begin + grant.num_tokens
        draws = end >= sequence.num_tokens
        self._charge(account, end, sequence.num_generated + draws)

    def leave(self, sequence_id: int) -> None:
        """A sequence ended; unknown ids are ignored."""
        account = self.accounts.pop(sequence_id, None)
        if account is None:
            return
        tenant = account.tenant
        self._charge(account, account.prompt, account.sequence.num_generated)
        self.unseat(account)
        tenant.num_sequences -= 1
        if not tenant.num_sequences:
            self.total_weight -= tenant.weight
            heapq.heappush(self._idle, (tenant.counter, tenant.name))
        self._forget()

    def reconcile(self, seated: Iterable[SequenceView], num_seats: int) -> None:
        """Note who took or lost a seat without the policy's doing; cheap when nobody did.

        :param seated: those that are known to have one
        :param num_seats: how many have one
        """
        if num_seats == self.num_seats:
            return
        for sequence in seated:
            self.seat(sequence)
        for account in self.accounts.values():
            if account.sequence.num_preemptions != account.num_preemptions:
                self.unseat(account)

    def _charge(self, account: Account, end: int, generated: int) -> None:
        tenant = account.tenant
        if account.prompt < account.num_prompt and account.prompt < end:
            new = min(end, account.num_prompt) - account.prompt
            account.prompt += new
            tenant.counter += new * self.input_price / tenant.weight
        new = generated - account.generated
        if new > 0:
            account.generated = generated
            tenant.counter += new * self.output_price / tenant.weight

    def _forget(self) -> None:
        """Drop the idle whose counters the level has passed: coming back they would be
        lifted to it anyway. Beyond the bound those least ahead go."""
        while self._idle and (self._idle[0][0] <= self.level or len(self._idle) > MAX_IDLE):
            counter, name = heapq.heappop(self._idle)
            tenant = self.tenants.get(name)
            if tenant and not tenant.num_sequences and tenant.counter == counter:
                del self.tenants[name]

    def check_integrity(self) -> None:
        """Seats and sequences are those of the accounts."""
        known = Counter(account.tenant.name for account in self.accounts.values())
        seated = Counter(a.tenant.name for a in self.accounts.values() if a.seated)
        for name, tenant in self.tenants.items():
            counted = (tenant.num_sequences, tenant.seats)
            if counted != (known[name], seated[name]):
                msg = f"tenant {name!r} counts {counted}, not {(known[name], seated[name])}"
                raise IntegrityError(msg)
