"""`[[keep]]` in the configuration file: read as intended, refused with the place of the fault."""

from datetime import timedelta
from pathlib import Path

import pytest

from postroom.app.config import load_settings
from postroom.app.retention import load_keep_rules
from postroom.contracts.errors import ConfigError
from postroom.contracts.mail import KeepRule

GOOD = """
[[keep]]
thread = "case-7"
hold = true

[[keep]]
project = "/home/me/harbour"
topic = "builds"
days = 14
unread_stays = false

[[keep]]
days = 365
"""


def environment(tmp_path: Path, text: str) -> dict[str, str]:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return {"POSTROOM_CONFIG": str(file), "HOME": str(tmp_path)}


def test_rules_are_read_in_order(tmp_path: Path) -> None:
    given = environment(tmp_path, GOOD)
    assert load_keep_rules(given) == (
        KeepRule(thread="case-7"),
        KeepRule(project="/home/me/harbour", topic="builds", keep=timedelta(days=14), unread_stays=False),
        KeepRule(keep=timedelta(days=365)),
    )
    assert load_settings(environment=given).run_retention == timedelta(0)
    assert load_keep_rules(environment(tmp_path, "port = 1\n")) == ()


def test_a_rule_that_cannot_be_is_refused_by_its_number_and_fault(tmp_path: Path) -> None:
    for text, fault in (
        *(("", "days"), ("days = 0", "days"), ("days = true", "days"), ('days = "30"', "days")),
        *(("days = 99999", "days"), ("hold = true\ndays = 3", "hold keeps messages forever")),
        *(
            ("hold = true\nunread_stays = true", "hold keeps messages forever"),
            ("hold = 1", "hold"),
            ("hold = false", "days"),
        ),
        *(("days = 3\nunread_stays = 1", "unread_stays"), ("days = 3\ntopic = 4", "topic")),
        *(('days = 3\nproject = " "', "project"), ("days = 3\ntopics = 4", "topics")),
    ):
        with pytest.raises(ConfigError, match=rf"\[\[keep\]\] number 2: .*{fault}") as caught:
            load_keep_rules(environment(tmp_path, f"[[keep]]\ndays = 1\n[[keep]]\n{text}\n"))
        assert caught.value.remedy
