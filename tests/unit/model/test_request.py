"""GPU requests in every accepted form become one normal form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.request import Request, mig_memory_mb, mig_share_milli


def asked(gpus: float, **fields) -> tuple[int, int, int]:
    request = Request.for_gpus(round(gpus * 1000), **fields)
    return (request.gpu_count, request.gpu_share_milli, request.gpu_extra_milli)


@pytest.mark.parametrize(
    ("gpus", "count", "share", "extra"),
    [
        (0, 0, 1000, 0),
        (0.01, 1, 10, 0),
        (0.5, 1, 500, 0),
        (1, 1, 1000, 0),
        (1.5, 1, 1000, 500),
        (2, 2, 1000, 0),
        (2.25, 2, 1000, 250),
        (8, 8, 1000, 0),
    ],
)
def test_amount_becomes_whole_devices_and_share(gpus, count, share, extra) -> None:
    assert asked(gpus) == (count, share, extra)


@pytest.mark.parametrize("gpus", [0.5, 1, 1.5, 2])
def test_exclusive_rounds_up_to_whole_devices(gpus) -> None:
    request = Request.for_gpus(round(gpus * 1000), exclusive=True)
    assert request.takes_whole_devices_only
    assert request.gpu_milli == -(-gpus // 1) * 1000


@pytest.mark.parametrize(
    ("gpus", "total_mb", "per_device", "extra"),
    [
        (0.5, 8_000, 8_000, 0),
        (1, 8_000, 8_000, 0),
        (2, 8_000, 4_000, 0),
        (1.5, 30_000, 20_000, 10_000),
        (3, 10_000, 3_334, 0),
    ],
)
def test_total_memory_is_divided_by_shares_and_rounded_up(
    gpus, total_mb, per_device, extra
) -> None:
    request = Request.for_gpus(round(gpus * 1000), gpu_memory_mb=total_mb)
    assert (request.gpu_memory_mb, request.gpu_extra_memory_mb) == (per_device, extra)
    assert request.gpu_memory_total_mb >= total_mb


@pytest.mark.parametrize(("gpus", "total_mb"), [(0.5, 8_000), (1, 8_000), (1.5, 16_000)])
def test_memory_per_gpu_applies_to_every_device(gpus, total_mb) -> None:
    request = Request.for_gpus(round(gpus * 1000), gpu_memory_mb_per_gpu=8_000)
    assert request.gpu_memory_mb == 8_000
    assert request.gpu_memory_total_mb == total_mb


def test_gpu_memory_alone_takes_memory_of_shared_device() -> None:
    request = Request.for_gpus(0, gpu_memory_mb=4_000)
    assert (request.device_count, request.gpu_share_milli) == (1, 0)
    assert request.gpu_memory_total_mb == 4_000


def test_gpu_memory_alone_may_be_per_gpu_or_whole_device() -> None:
    shared = Request.for_gpus(0, gpu_memory_mb_per_gpu=4_000)
    assert shared == Request.for_gpus(0, gpu_memory_mb=4_000)
    whole = Request.for_gpus(0, gpu_memory_mb=4_000, exclusive=True)
    assert whole == Request.for_gpus(1000, gpu_memory_mb=4_000)
    assert Request.for_gpus(0, exclusive=True).device_count == 0


@pytest.mark.parametrize(
    ("profile", "memory_mb"), [("1g.10gb", 10_240), ("3g.40gb+me", 40_960), ("1g.some", 0)]
)
def test_slice_memory_follows_profile_name(profile: str, memory_mb: int) -> None:
    assert mig_memory_mb(profile) == memory_mb


@given(st.integers(1, 6400).map(lambda steps: steps * 10), st.integers(0, 10**6))
def test_normal_form_loses_no_amount(gpus_milli: int, memory_mb: int) -> None:
    request = Request.for_gpus(gpus_milli, gpu_memory_mb=memory_mb)
    assert request.gpu_milli == gpus_milli
    assert request.device_count == -(-gpus_milli // 1000)
    assert 0 <= request.gpu_memory_total_mb - memory_mb <= request.device_count


def test_lists_are_sorted_so_that_equal_requests_compare_equal() -> None:
    one = Request.for_gpus(
        1000, gpu_models=("B", "A", "B"), device_ids=(3, 1, 3), node_labels=(("z", "1"), ("a", "2"))
    )
    other = Request.for_gpus(
        1000, gpu_models=("A", "B"), device_ids=(1, 3), node_labels=(("a", "2"), ("z", "1"))
    )
    assert one == other
    assert hash(one) == hash(other)


def test_mig_slices_count_in_sevenths() -> None:
    assert [mig_share_milli(p) for p in ("1g.10gb", "3g.40gb", "7g.80gb")] == [142, 428, 1000]
    request = Request.for_gpus(2000, mig_profile="3g.40gb")
    assert request.gpu_milli == 856
    assert not request.takes_whole_devices_only


@pytest.mark.parametrize("profile", ["3g", "g.10gb", "0g.5gb", "8g.80gb", "xg.10gb", "3g."])
def test_unknown_mig_profile_is_rejected(profile: str) -> None:
    with pytest.raises(InvalidRequest, match=f"MIG profile '{profile}' is not known"):
        Request(gpu_count=1, mig_profile=profile)


@pytest.mark.parametrize(
    "name",
    [
        "gpu_count",
        "gpu_memory_mb",
        "gpu_extra_memory_mb",
        "cpu_milli",
        "memory_mb",
        "min_bandwidth_gbps",
    ],
)
def test_negative_amounts_are_rejected_by_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is -1; it must be 0 or more"):
        Request(**{name: -1})


@pytest.mark.parametrize("name", ["gpu_share_milli", "gpu_extra_milli"])
@pytest.mark.parametrize("share", [-10, 1010, 15])
def test_share_is_between_one_hundredth_and_one(name: str, share: int) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is {share}; a share of a GPU goes from"):
        Request(gpu_count=1, **{name: share})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gpu_count": 1, "gpu_share_milli": 500, "gpu_extra_milli": 500}, "as in 1.5"),
        ({"gpu_count": 1, "gpu_extra_milli": 1000}, "as in 1.5"),
        ({"gpu_count": 1, "gpu_share_milli": 0}, "neither a share nor GPU memory"),
        (
            {"gpu_count": 1, "gpu_share_milli": 500, "mig_profile": "1g.10gb"},
            "leave the fraction away",
        ),
        (
            {"gpu_count": 1, "gpu_extra_milli": 500, "mig_profile": "1g.10gb"},
            "leave the fraction away",
        ),
        (
            {"gpu_count": 3, "device_ids": (0, 1)},
            "3 GPUs were asked for from a list of 2 allowed devices",
        ),
        (
            {"gpu_count": 1, "gpu_extra_milli": 500, "device_ids": (0,)},
            "2 GPUs were asked for from a list of 1",
        ),
    ],
)
def test_contradictory_request_is_rejected(fields, message) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Request(**fields)


@pytest.mark.parametrize(
    ("gpus_milli", "fields", "message"),
    [
        (-1000, {}, "-1 GPUs were asked for; ask for 0 or more"),
        (1005, {}, "1.005 GPUs were asked for; the finest step is 0.01"),
        (1000, {"gpu_memory_mb": 1, "gpu_memory_mb_per_gpu": 1}, "in total and per GPU"),
        (500, {"mig_profile": "1g.10gb"}, "leave the fraction away"),
    ],
)
def test_absurd_amounts_are_rejected(gpus_milli, fields, message) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Request.for_gpus(gpus_milli, **fields)


def test_zero_share_with_memory_takes_only_memory() -> None:
    request = Request(gpu_count=1, gpu_share_milli=0, gpu_memory_mb=1000)
    assert (request.gpu_milli, request.gpu_memory_total_mb) == (0, 1000)
