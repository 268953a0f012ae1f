"""sysctl: every control variable by a dotted name. Only root may set one.

policy                 progress | fcfs | retract ...      set
sched.<tunable>        sched.tunables.Tunables             set
kernel.<param>         kernel.params.Params                read only
rates.<estimate>       what was measured                   read only
swap.restore           auto | swap-in | recompute | split  set; the others are for experiments
swap.<fact>            of the swap file (swapon, swapoff)  read only
weights.<tenant>       of a tenant's share; 1 if not set   set; a tenant sees its own
quota.<tenant>.<tier>.<floor|ceiling>                     set; a tenant sees its own
                       pages of the frames, host or disk; a ceiling of 0: none
"""

import dataclasses
import errno

from tokenix.kernel.calls import Principal, Sysctl, error
from tokenix.kernel.lifecycle import Lifecycle
from tokenix.mm.quota import TIERS, Quota
from tokenix.sched.policies import POLICIES
from tokenix.sched.tunables import retune
from tokenix.swap.restore import WAYS
from tokenix.swap.transfers import Lane

Value = float | int | str | bool

WEIGHTS = "weights."
QUOTA = "quota."
BOUNDS = ("floor", "ceiling")


def sysctl(kernel: Lifecycle, who: Principal, request: Sysctl) -> object:
    """Read one variable or all ({name: value}), or set one and return its old value."""
    known = read_all(kernel)
    if request.name.startswith(WEIGHTS):
        known.setdefault(request.name, 1.0)
    if request.name.startswith(QUOTA):
        known.setdefault(request.name, _quota_of(kernel, request.name))
    if not who.root:
        mine = {WEIGHTS + who.tenant}
        mine |= {f"{QUOTA}{who.tenant}.{tier}.{bound}" for tier in TIERS for bound in BOUNDS}
        hidden = {name for name in known if name.startswith((WEIGHTS, QUOTA))} - mine
        known = {name: value for name, value in known.items() if name not in hidden}
    if request.name == "" and request.value is None:
        return known
    if request.name not in known:
        raise error(errno.ENOENT, f"no control variable {request.name!r}; sysctl lists all names")
    if request.value is None:
        return known[request.name]
    if not who.root:
        raise error(errno.EPERM, f"only root may set {request.name}")
    _set(kernel, request.name, request.value)
    kernel.trace.add(kernel.now_s, None, "sysctl", name=request.name, value=str(request.value))
    return known[request.name]


def read_all(kernel: Lifecycle) -> dict[str, Value]:
    scheduler = kernel.scheduler
    values: dict[str, Value] = {"policy": scheduler.policy.name}
    for prefix, record in (
        ("sched", scheduler.tunables), ("kernel", kernel.params), ("rates", scheduler.rates)
    ):  # fmt: skip
        for field in dataclasses.fields(record):
            values[f"{prefix}.{field.name}"] = getattr(record, field.name)
    for lane in Lane:
        values[f"rates.{lane.value}_s_per_page"] = kernel.memory.copies.link.s_per_page(lane)
    values["swap.restore"] = kernel.memory.restore
    values["swap.file"] = kernel.swapfile.state.value
    values["swap.directory"] = kernel.swapfile.directory
    for tenant, weight in scheduler.queues.shares.weights.items():
        values[WEIGHTS + tenant] = weight
    for tenant, tier, quota in kernel.memory.quotas.listed():
        values[f"{QUOTA}{tenant}.{tier}.floor"] = quota.floor
        values[f"{QUOTA}{tenant}.{tier}.ceiling"] = quota.ceiling or 0
    return values


def _set(kernel: Lifecycle, name: str, value: Value) -> None:
    if name.startswith(WEIGHTS):
        _weigh(kernel, name, value)
        return
    if name.startswith(QUOTA):
        _set_quota(kernel, name, value)
        return
    group, _, field = name.rpartition(".")
    if name == "policy":
        policy = POLICIES.get(str(value))
        if policy is None:
            raise error(errno.EINVAL, f"no policy {value!r}; there are {', '.join(POLICIES)}")
        kernel.scheduler.policy = policy
        return
    if name == "swap.restore":
        if value not in WAYS:
            raise error(errno.EINVAL, f"no way back {value!r}; there are {', '.join(WAYS)}")
        kernel.memory.restore = str(value)
        return
    if group != "sched":
        raise error(errno.EPERM, f"{name} can only be read")
    try:
        number = float(value)
    except ValueError:
        raise error(errno.EINVAL, f"{name} cannot be {value!r}: it is a number") from None
    try:
        kernel.scheduler.tunables = retune(kernel.scheduler.tunables, {field: number})
    except ValueError as why:
        hint = str(why).rpartition(" cannot be: ")[2]  # what cannot be is said here
        raise error(errno.EINVAL, f"{name} cannot be {value!r}: {hint}") from None


def _weigh(kernel: Lifecycle, name: str, value: Value) -> None:
    try:
        kernel.scheduler.queues.shares.weigh(name.removeprefix(WEIGHTS), float(value))
    except (ValueError, AssertionError):
        raise error(
            errno.EINVAL, f"{name} cannot be {value!r}: a weight is positive and finite"
        ) from None


def _quota_parts(name: str) -> tuple[str, str, str]:
    """(tenant, tier, floor or ceiling) of a quota's name. ENOENT."""
    parts = tuple(name.removeprefix(QUOTA).rsplit(".", 2))
    if len(parts) != 3 or not parts[0] or parts[1] not in TIERS or parts[2] not in BOUNDS:
        raise error(
            errno.ENOENT,
            f"no quota {name!r}; they are named {QUOTA}<tenant>.<{'|'.join(TIERS)}>."
            f"<{'|'.join(BOUNDS)}>",
        )
    return parts[0], parts[1], parts[2]


def _quota_of(kernel: Lifecycle, name: str) -> int:
    tenant, tier, bound = _quota_parts(name)
    quota = kernel.memory.quotas.get(tenant, tier)
    return quota.floor if bound == "floor" else quota.ceiling or 0


def _set_quota(kernel: Lifecycle, name: str, value: Value) -> None:
    tenant, tier, bound = _quota_parts(name)
    quotas, copies = kernel.memory.quotas, kernel.memory.copies
    places = {
        "frames": kernel.info.frames, "host": copies.host.total, "disk": kernel.swapfile.blocks
    }  # fmt: skip
    pages = _pages(value)
    try:
        if pages is None:
            raise ValueError("pages are a whole number; 0 is no quota")
        old = quotas.get(tenant, tier)
        new = (
            Quota(pages, old.ceiling)
            if bound == "floor"
            else Quota(old.floor, None if pages == 0 else pages)
        )
        if not quotas.counting:
            kernel.memory.start_counting()
        quotas.set(tenant, tier, new, places[tier])
    except ValueError as why:
        raise error(errno.EINVAL, f"{name} cannot be {value!r}: {why}") from None


def _pages(value: Value) -> int | None:
    """A whole number, or the text of one; None: it is no such thing."""
    if isinstance(value, bool):
        return None
    try:
        pages = int(value)
        return pages if isinstance(value, str) or pages == value else None
    except (ValueError, TypeError, OverflowError):
        return None
