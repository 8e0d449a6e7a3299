"""One resource in the quota tree: what nodes may hold, lend and reclaim."""

from gpu_scheduler.engine.quota.resource_limits import ROOT, Column, NodeLimits, Reserve


def a_column(
    *limits: NodeLimits, capacity: int | None = None, used: dict[str, int] | None = None
) -> Column:
    column = Column("*", limits, capacity)
    for key, milli in (used or {}).items():
        column.at(key).add(milli)
    return column


def a_node(key: str, guaranteed: int = 0, parent: object = ROOT, **limits) -> NodeLimits:
    return NodeLimits(key=key, parent=parent, guaranteed=guaranteed, **limits)


TWO_DEPARTMENTS = (
    a_node("physics", 8),
    a_node("optics", 4, "physics"),
    a_node("lasers", 2, "physics"),
    a_node("biology", 8),
    a_node("cells", 8, "biology"),
)


def test_use_counts_in_all_nodes_above() -> None:
    column = a_column(*TWO_DEPARTMENTS, capacity=20, used={"optics": 3, "cells": 5})
    held = {key: node.used for key, node in column.nodes.items()}
    assert held == {ROOT: 8, "physics": 3, "optics": 3, "lasers": 0, "biology": 5, "cells": 5}


def test_own_guarantee_is_covered_whatever_others_hold() -> None:
    column = a_column(*TWO_DEPARTMENTS, capacity=16, used={"cells": 14})
    assert column.covers("optics", 4, borrow=False)
    assert not column.covers("optics", 9, borrow=True)


def test_idle_guarantee_is_lent_within_the_department_first_and_then_beyond() -> None:
    column = a_column(*TWO_DEPARTMENTS, capacity=16, used={"optics": 4})
    assert column.covering("optics", 4, Reserve.WITHHELD) is column.at("physics")
    assert column.covering("optics", 5, Reserve.WITHHELD) is column.root
    assert column.covers("optics", 12, borrow=True)
    assert not column.covers("optics", 13, borrow=True)


def test_without_borrowing_only_what_no_child_is_guaranteed_is_free() -> None:
    column = a_column(*TWO_DEPARTMENTS, capacity=20, used={"optics": 4})
    assert column.covering("optics", 2, Reserve.PROMISED) is column.at(
        "physics"
    )  # 2 that no child is guaranteed
    assert (
        column.covering("optics", 6, Reserve.PROMISED) is column.root
    )  # and 4 that no department is guaranteed
    assert column.covering("optics", 7, Reserve.PROMISED) is None


def test_guarantee_of_a_team_is_kept_when_its_department_uses_its_own() -> None:
    column = a_column(a_node("a", 1), a_node("a1", 1, "a"), capacity=8, used={"a": 1})
    assert column.covers("guests", 6, borrow=False)
    assert not column.covers("guests", 7, borrow=False)


def test_kept_part_is_not_lent_beyond_any_level() -> None:
    nodes = (a_node("a", 4), a_node("a1", 4, "a", kept=3), a_node("b", 4))
    column = a_column(*nodes, used={"b": 4})
    assert column.covers("b", 1, borrow=True)
    assert not column.covers("b", 2, borrow=True)
    column.at("a1").add(3)
    assert column.covers("b", 1, borrow=True)


def test_what_waiting_work_needs_is_not_lent() -> None:
    column = a_column(a_node("a", 4), a_node("b", 4), used={"a": 1, "b": 4})
    column.at("a").wait(2)
    assert column.covers("b", 1, borrow=True)
    assert not column.covers("b", 2, borrow=True)
    column.at("a").wait(-2)
    assert column.covers("b", 3, borrow=True)


def test_maximum_of_any_node_above_holds_back() -> None:
    nodes = (a_node("a", 4, maximum=6), a_node("a1", 4, "a"), a_node("a2", 0, "a"), a_node("b", 9))
    column = a_column(*nodes, used={"a1": 4})
    assert column.over_maximum("a2", 2) is None
    assert column.over_maximum("a2", 3) is column.at("a")


def test_right_to_reclaim_needs_a_guarantee_that_covers_the_job() -> None:
    column = a_column(*TWO_DEPARTMENTS, capacity=16, used={"cells": 12, "optics": 3})
    assert column.entitlement("optics", 1) is not None
    assert column.entitlement("lasers", 3) is not None  # 2 of its own and 1 of the department
    assert column.entitlement("optics", 4) is None
    assert column.entitlement("cells", 1) is None


def test_reclaiming_leaves_every_borrower_its_guarantee() -> None:
    column = a_column(*TWO_DEPARTMENTS, capacity=16, used={"cells": 12, "optics": 3})
    right = column.entitlement("optics", 1)
    assert right is not None
    assert column.is_lent(right, "cells", 4, {})
    assert not column.is_lent(right, "cells", 5, {})
    assert not column.is_lent(right, "cells", 4, {("*", "biology"): 1})
    assert not column.is_lent(right, "optics", 1, {})


def test_department_over_its_guarantee_reclaims_only_inside() -> None:
    used = {"optics": 3, "lasers": 6, "cells": 9}
    column = a_column(*TWO_DEPARTMENTS, capacity=18, used=used)
    right = column.entitlement("optics", 1)
    assert right is not None
    assert column.is_lent(right, "lasers", 4, {})
    assert not column.is_lent(right, "cells", 1, {})


def test_work_in_no_node_is_reclaimed_from_the_root() -> None:
    column = a_column(*TWO_DEPARTMENTS, capacity=16, used={"nobody": 16})
    assert column.root.used == 16
    right = column.entitlement("cells", 8)
    assert right is not None
    assert column.is_lent(right, "nobody", 8, {})


def test_copy_changes_alone() -> None:
    column = a_column(*TWO_DEPARTMENTS, capacity=16, used={"cells": 12})
    copy = column.copy()
    copy.at("cells").add(4)
    assert (column.at("biology").used, copy.at("biology").used) == (12, 16)
    assert (column.root.children_idle, copy.root.children_idle) == (8, 8)
