"""Plots of simulated runs. Needs matplotlib (the extra `report`)."""

from collections.abc import Sequence
from pathlib import Path

from tokenix.bench.simulate import Result


def plot(results: Sequence[Result], path: str | Path) -> None:
    """Curves of TTFT (share of requests over seconds); with several loads also goodput and P95."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    scales = sorted({result.rate_scale for result in results})
    columns = 3 if len(scales) > 1 else 1
    figure, axes = pyplot.subplots(1, columns, figsize=(6 * columns, 4), squeeze=False)
    cdf = axes[0][0]
    for result in results:
        if result.rate_scale != scales[-1]:
            continue
        ttfts = sorted(o.ttft_s for o in result.outcomes if o.ttft_s is not None)
        shares = [(rank + 1) / result.requests for rank in range(len(ttfts))]
        cdf.step(ttfts, shares, where="post", label=f"{result.policy}, {result.reader:g} tok/s")
    cdf.set(xscale="log", xlabel="TTFT (s)", ylabel="share of requests", ylim=(0, 1.02))
    cdf.set_title(f"first token at {scales[-1]:g}x")
    cdf.legend()
    if columns > 1:
        for policy in dict.fromkeys(result.policy for result in results):
            mine = sorted((r for r in results if r.policy == policy), key=lambda r: r.rate_scale)
            loads = [r.rate_scale for r in mine]
            axes[0][1].plot(loads, [r.goodput for r in mine], marker="o", label=policy)
            late = [r.ttft_p95_s if r.ttft_p95_s is not None else float("nan") for r in mine]
            axes[0][2].plot(loads, late, marker="o", label=policy)
        axes[0][1].set(xlabel="load (times the trace)", ylabel="goodput", ylim=(0, 1.02))
        axes[0][2].set(xlabel="load (times the trace)", ylabel="P95 TTFT (s)", yscale="log")
    for axis in axes[0]:
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(Path(path), dpi=120)
    pyplot.close(figure)
