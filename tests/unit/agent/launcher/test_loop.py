"""The launcher's event loop continues after errors in callbacks."""

import os

from gpu_scheduler.agent.launcher.loop import Arguments, Loop


def fail(*_: object) -> None:
    raise RuntimeError("never expected")


def test_callback_error_is_reported_with_arguments_and_stops_nothing_else() -> None:
    loop = Loop()
    failures: list[tuple[Exception, Arguments]] = []
    done: list[str] = []
    loop.on_error = lambda *error: failures.append(error)
    reader, writer = os.pipe()
    os.write(writer, b"x")
    loop.add(reader, fail)
    loop.after(0, fail, "an argument")
    loop.after(0, lambda: done.append("timer"))
    child = os.fork()
    if child == 0:
        os._exit(0)
    loop.at_exit(child, fail)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    loop._on_sigchld(0, None)
    for _ in range(3):
        loop.after(0, lambda: done.append("turn"))
        loop.turn()
    assert done.count("turn") == 3
    assert "timer" in done
    assert len(failures) == 3
    assert ("an argument",) in [arguments for _, arguments in failures]
    os.close(reader)
    os.close(writer)


def test_concurrent_wake_ups_are_merged() -> None:
    loop = Loop()
    failures: list[tuple[Exception, Arguments]] = []
    loop.on_error = lambda *error: failures.append(error)
    os.write(loop._wake_writer, b"x" * 4096)
    loop.turn()
    assert failures == []


def test_reused_descriptor_gets_no_event_of_former_one() -> None:
    loop = Loop()
    called: list[str] = []
    first, last = os.pipe(), os.pipe()
    fresh = os.pipe()

    def use_again(other: int) -> None:
        called.append("once")
        for end in (first[0], last[0]):
            loop.drop(end)
        os.dup2(fresh[0], other)
        loop.add(other, lambda: called.append("for nothing"))

    loop.add(first[0], lambda: use_again(last[0]))
    loop.add(last[0], lambda: use_again(first[0]))
    for _, writer in (first, last):
        os.write(writer, b"x")
    loop.turn()
    assert called == ["once"]
    for end in (*first, *last, *fresh):
        os.close(end)
