"""Rules of jobs for notifications: events and allowed targets."""

import pytest

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.notification import OF_JOBS, Notice, NotifyRule, read_rules
from gpu_scheduler.notify.event_rules import default_target, row_of, target_warnings, why_not
from gpu_scheduler.settings.fields import Target
from gpu_scheduler.settings.groups.operations import NotificationSettings
from tests.builders import a_job

SLACK = Target(kind="webhook", url="https://hooks.example/x", events=("fail",))
MAIL = Target(kind="email", to="{user}@lab.example", for_jobs=True)
VISION = Target(kind="email", to="vision@lab.example", for_jobs=True, tenants=("vision",))


def test_rule_names_events_and_optional_target() -> None:
    assert read_rules(["end, FAIL:slack", "start"]) == (
        NotifyRule((Notice.END, Notice.FAIL), "slack"),
        NotifyRule((Notice.START,)),
    )
    assert read_rules(["all:https://x.example/a:b"]) == (
        NotifyRule(OF_JOBS, "https://x.example/a:b"),
    )
    assert str(read_rules(["fail,end:mail"])[0]) == "end,fail:mail"
    assert read_rules([" None", "fail"]) == (NotifyRule(()), NotifyRule((Notice.FAIL,)))
    assert str(read_rules(["none"])[0]) == "none"


@pytest.mark.parametrize(
    "text",
    ["", ":mail", "lunch", "none:mail", "none,end", "end:two words", "gpu_free", "end:\x1b[1m"],
)
def test_invalid_rule_is_rejected_with_valid_forms(text: str) -> None:
    with pytest.raises(InvalidRequest, match="notify is"):
        read_rules([text])


def test_rules_per_job_are_limited() -> None:
    with pytest.raises(InvalidRequest, match="11 rules"):
        read_rules([f"end:t{number}" for number in range(11)])


def refusal(text: str, settings: NotificationSettings, tenant: str = "default") -> str:
    return why_not(read_rules([text])[0], a_job(tenant=tenant), settings)


def test_jobs_name_only_targets_meant_for_jobs() -> None:
    settings = NotificationSettings(targets={"slack": SLACK, "mail": MAIL})
    assert refusal("end", settings) == ""
    assert refusal("end:mail", settings) == ""
    assert "no target 'slack'" in refusal("end:slack", settings)
    assert "can be named here: mail" in refusal("end:nobody", settings)
    assert "none is set up" in refusal("end", NotificationSettings())


def test_target_of_one_tenant_is_not_available_to_others() -> None:
    settings = NotificationSettings(targets={"mail": MAIL, "vision": VISION})
    assert refusal("end:vision", settings, "vision") == ""
    assert "no target 'vision'" in refusal("end:vision", settings)


def test_several_job_targets_without_default_are_warned_about() -> None:
    two = {"mail": MAIL, "other": MAIL}
    (warning,) = target_warnings(NotificationSettings(targets=two))
    assert warning == (
        "jobs of all tenants have several targets (mail, other) and no default one: '--notify end' "
        "is rejected without a target, and owners are not notified of idle; name one of them in "
        "notifications.default_target"
    )
    (quiet,) = target_warnings(NotificationSettings(targets=two, owner_events=()))
    assert "owners" not in quiet
    assert target_warnings(NotificationSettings(targets=two, default_target="mail")) == []


def test_tenants_with_default_target_give_no_warning() -> None:
    assert target_warnings(NotificationSettings()) == []
    assert target_warnings(NotificationSettings(targets={"slack": SLACK, "pager": SLACK})) == []
    assert target_warnings(NotificationSettings(targets={"mail": MAIL, "vision": VISION})) == []


def test_tenant_without_unique_target_is_named() -> None:
    targets = {"mail": MAIL, "vision": VISION, "wall": VISION}
    (warning,) = target_warnings(NotificationSettings(targets=targets))
    assert warning.startswith("jobs of tenant 'vision' have several targets (mail, vision, wall)")
    more = NotificationSettings(targets={**targets, "other": MAIL}, default_target="vision")
    (warning,) = target_warnings(more)
    assert warning.startswith("jobs of all other tenants have several targets (mail, other)")


@pytest.mark.parametrize(
    ("name", "told"),
    [("mial", "no such target (there are: mail, slack)"), ("slack", "which is not for jobs")],
    ids=["unknown", "not for jobs"],
)
def test_default_that_no_job_can_use_is_warned_about(name: str, told: str) -> None:
    settings = NotificationSettings(targets={"mail": MAIL, "slack": SLACK}, default_target=name)
    (warning,) = target_warnings(settings)
    assert told in warning


def test_default_target_is_that_of_tenant_or_only_one() -> None:
    targets = {"mail": MAIL, "vision": VISION}
    settings = NotificationSettings(targets=targets)
    assert default_target(settings, "vision") == "vision"
    assert default_target(settings, "nlp") == "mail"
    named = NotificationSettings(targets=targets, default_target="mail")
    assert default_target(named, "vision") == "mail"
    closed = NotificationSettings(targets=targets, default_target="vision")
    assert default_target(closed, "nlp") == "mail"
    two = NotificationSettings(targets={"mail": MAIL, "other": MAIL})
    assert "no default" in refusal("end", two)
    assert refusal("none", NotificationSettings()) == ""


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://[64:ff9b::a00:1]/",
        "https://169.254.169.254/latest/meta-data",
        "https://10.1.2.3:8080/",
        "https://localhost/",
        "https://db.internal/",
        "http://hooks.example/",
        "https://user:pw@hooks.example/",
        "https://hooks.example:99999/",
    ],
)
def test_job_webhook_address_must_be_public_and_encrypted(url: str) -> None:
    settings = NotificationSettings(allow_job_webhooks=True)
    assert "webhook URL" in refusal(f"end:{url}", settings)


def test_job_webhook_addresses_are_accepted_only_where_allowed() -> None:
    url = "https://hooks.example/T0/B0"
    assert "allow_job_webhooks" in refusal(f"end:{url}", NotificationSettings(targets={"m": MAIL}))
    assert refusal(f"end:{url}", NotificationSettings(allow_job_webhooks=True)) == ""


def test_two_webhooks_of_one_job_have_distinct_opaque_ids() -> None:
    rows = [row_of("event-1", f"https://hooks.example/{name}", {}, 0) for name in ("a", "b")]
    assert rows[0].id != rows[1].id
    assert "hooks" not in rows[0].id
    assert row_of("event-1", "slack", {}, 0).id == "event-1-slack"
