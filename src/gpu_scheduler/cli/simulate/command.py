"""`tgpu simulate`: work and policies in, a comparison out.

This module chooses what to do; `simulate_work` makes the work, `simulator.experiment` runs it and
`simulate_show` renders it. The heavy parts are imported when they are needed.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_scheduler.cli.simulate.options import add_options, check_together

if TYPE_CHECKING:
    from gpu_scheduler.simulator.experiment import Conditions
    from gpu_scheduler.simulator.workload import Workload

DEMO_REPORT = Path("build/demo-report.html")


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add_options(parser)


def run(args: Namespace) -> int:
    """Do what the options say."""
    check_together(args)
    if args.list_policies:
        from gpu_scheduler.cli.simulate.show import list_policies

        list_policies(as_json=args.json)
    elif args.fill:
        from gpu_scheduler.cli.simulate.fill import run_fill

        run_fill(args)
    elif args.write_trace is not None:
        _write_trace(args)
    else:
        _compare(args)
    return 0


def _write_trace(args: Namespace) -> None:
    from gpu_scheduler.cli.simulate.show import say
    from gpu_scheduler.cli.simulate.work import generated, write_generated

    count = write_generated(generated(args), args.write_trace)
    if not args.quiet:
        say(f"{count} jobs written to {args.write_trace}")


def _compare(args: Namespace) -> None:
    """Run every policy, then write and print; nothing is written unless all runs ended."""
    from gpu_scheduler.cli.simulate.show import (
        DEFAULT_POLICIES,
        Comparison,
        policies_named,
        progress,
        show,
    )
    from gpu_scheduler.cli.simulate.work import check_writable
    from gpu_scheduler.simulator.experiment import predictor_choice, run_policies, total_tasks

    if args.demo and args.report is None:
        args.report = DEMO_REPORT
    policies = policies_named(args.policy or DEFAULT_POLICIES)
    if args.report is not None:
        check_writable(args.report)
    workload, skipped = _work(args)
    conditions = _conditions(args)
    names = [policy.name for policy in policies]
    with progress(names, total_tasks(workload), quiet=args.quiet) as on_progress:
        runs = run_policies(workload, policies, conditions, on_progress)
    comparison = Comparison(
        workload=workload,
        conditions=conditions,
        runs=runs,
        predictors={
            policy.name: predictor_choice(policy, workload, conditions.predictor)
            for policy in policies
        },
        skipped=skipped,
    )
    show(comparison, args)


def _work(args: Namespace) -> tuple[Workload, dict[str, int]]:
    """The work, and how many rows of a trace were left out, by reason."""
    from gpu_scheduler.cli.simulate.work import generated, seed_of, trace_reading

    if args.demo:
        from gpu_scheduler.simulator.generator import demo_workload

        return demo_workload(seed_of(args)), {}
    if args.generate:
        return generated(args), {}
    reading = trace_reading(args)
    return reading.workload, reading.skipped


def _conditions(args: Namespace) -> Conditions:
    from gpu_scheduler.cli.simulate.work import seed_of
    from gpu_scheduler.simulator.experiment import NO_LIMIT_MS, Conditions, PredictorChoice
    from gpu_scheduler.simulator.world import Physics

    usual = Physics()
    cost_ms, wide_ms = args.preemption_cost, args.wide_preemption_cost
    return Conditions(
        predictor=PredictorChoice(args.predictor or "auto"),
        physics=Physics(
            preemption_cost_ms=usual.preemption_cost_ms if cost_ms is None else cost_ms,
            wide_preemption_cost_ms=usual.wide_preemption_cost_ms if wide_ms is None else wide_ms,
            keeps_progress=not args.lose_progress,
        ),
        forecasts=args.forecasts,
        default_limit_ms=args.default_limit or NO_LIMIT_MS,
        seed=seed_of(args),
    )
