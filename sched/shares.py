"""Who has had how much: shares of the classes, and fairness of the tenants inside a class.

Service is counted in tokens, a decoded one twice (it reads all its KV again), a prompt with its
first token. It is charged every `LOOK_FORWARDS` forwards and when a process stops running.

Classes (stride scheduling): while a class has newcomers waiting or refused, it earns its guaranteed
share of all service; what it has earned and not had is its deficit. A class whose deficit exceeds
its share of a quantum is *behind*: its newcomers go first, and none of its processes is displaced.

Tenants (weighted virtual token counters, Sheng et al. 2024): each has a counter of the service it
had over its weight; one that comes (back) starts at the least of those present. Newcomers of a
tenant that is quanta ahead of the least served one wait behind those of the others.
"""

import math
from dataclasses import dataclass, field

from tokenix.sched.entity import Qos, SchedEntity
from tokenix.sched.rates import Rates
from tokenix.sched.tunables import Tunables

LOOK_FORWARDS = 16
KEPT_TENANTS = 1024
"""So many counters of tenants without a process are remembered."""

Account = tuple[Qos, str]


@dataclass(slots=True)
class Shares:
    weights: dict[str, float] = field(default_factory=dict)
    """Of tenants; 1 where nothing is said."""
    behind: dict[Qos, bool] = field(default_factory=lambda: dict.fromkeys(Qos, False))
    deficits: dict[Qos, float] = field(default_factory=lambda: dict.fromkeys(Qos, 0.0))
    counters: dict[Account, float] = field(default_factory=dict)
    lags: dict[Account, int] = field(default_factory=dict)
    """Quanta ahead of the least served tenant; 0 is left out."""
    _present: dict[Account, int] = field(default_factory=dict)
    _waiting: dict[Qos, int] = field(default_factory=lambda: dict.fromkeys(Qos, 0))
    _turned_away: dict[Qos, float] = field(default_factory=lambda: dict.fromkeys(Qos, 0.0))
    """Until when a class counts as waiting because a newcomer of it was refused."""
    _earned: float = 0.0
    """Service since the deficits were brought up to date."""

    def weigh(self, tenant: str, weight: float) -> None:
        """From now on `tenant` is owed `weight` times the service of one with weight 1."""
        assert 0 < weight < math.inf
        if weight == 1.0:
            self.weights.pop(tenant, None)
        else:
            self.weights[tenant] = weight

    def note_present(self, entity: SchedEntity) -> None:
        """It came into the queues."""
        account = (entity.qos, entity.tenant)
        count = self._present.get(account, 0)
        if not count:
            self.counters[account] = max(self.counters.get(account, 0.0), self._least(entity.qos))
        self._present[account] = count + 1

    def note_gone(self, entity: SchedEntity) -> None:
        account = (entity.qos, entity.tenant)
        self._present[account] -= 1
        if not self._present[account]:
            del self._present[account]
            self.counters[account] = self.counters.pop(account)  # now the last to be forgotten
            if len(self.counters) > KEPT_TENANTS + len(self._present):
                oldest = next(known for known in self.counters if known not in self._present)
                del self.counters[oldest]

    def note_waiting(self, qos: Qos, change: int) -> None:
        """`change` more newcomers wait."""
        self._waiting[qos] += change

    def note_refused(self, qos: Qos, now_s: float, tunables: Tunables) -> None:
        """A newcomer was refused at arrival: for a while its class would have had work."""
        self._turned_away[qos] = now_s + tunables.max_wait_targets * tunables.target_s(qos)

    def charge(self, entity: SchedEntity) -> None:
        """Count what it was delivered since it was charged last, and its prompt the first time."""
        new = entity.delivered_tokens - entity.charged_tokens
        if new <= 0:
            return
        service = 2.0 * new + (entity.prompt_tokens if not entity.charged_tokens else 0)
        entity.charged_tokens = entity.delivered_tokens
        account = (entity.qos, entity.tenant)
        if account in self.counters:
            self.counters[account] += service / self.weights.get(entity.tenant, 1.0)
        self.deficits[entity.qos] -= service
        self._earned += service

    def mark(self, entity: SchedEntity) -> None:
        """Write down where a newcomer stands."""
        entity.behind = self.behind[entity.qos]
        entity.lag = self.lags.get((entity.qos, entity.tenant), 0)

    def look(self, now_s: float, tunables: Tunables, rates: Rates) -> bool:
        """Bring deficits and lags up to date; whether anybody's order has changed."""
        quantum = tunables.share_quantum_s * rates.prefill_tokens_per_s
        changed = self._look_at_classes(now_s, tunables, quantum)
        lags = {}
        floors = {qos: self._least(qos) for qos in Qos}
        for account in self._present:
            lag = int((self.counters[account] - floors[account[0]]) / quantum)
            if lag > 0:
                lags[account] = lag
        changed |= lags != self.lags
        self.lags = lags
        return changed

    def _look_at_classes(self, now_s: float, tunables: Tunables, quantum: float) -> bool:
        before = dict(self.behind)
        for qos in Qos:
            deficit, share = self.deficits[qos], tunables.share_of(qos)
            if self._waiting[qos] or now_s < self._turned_away[qos]:
                deficit += share * self._earned
            else:
                deficit = min(deficit, 0.0)
            self.deficits[qos] = max(-share * quantum, min(deficit, 8 * quantum))
            threshold = 0.0 if before[qos] else share * quantum
            self.behind[qos] = self.deficits[qos] > threshold
        self._earned = 0.0
        return self.behind != before

    def _least(self, qos: Qos) -> float:
        """Counter of the least served tenant that is present in a class."""
        return min((self.counters[a] for a in self._present if a[0] is qos), default=0.0)
