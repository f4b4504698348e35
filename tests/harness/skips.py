"""A pytest plugin: in continuous integration a skipped test is a failure.

A test that nobody runs looks like one that passes.  Only what a machine may truly lack excuses a
skip there: an accelerator, a data set that may not be redistributed, a program to compare with.
"""

import os
from collections.abc import Generator

import pytest

EXCUSES = ("needs a GPU", "needs data:", "optional peer:")


def unexcused(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """The reason of a skip that counts as a failure, None where the report is no such skip."""
    expected_failure = hasattr(report, "wasxfail")
    if not report.skipped or expected_failure or not isinstance(report.longrepr, tuple):
        return None
    reason = str(report.longrepr[2]).removeprefix("Skipped: ")
    return None if reason.startswith(EXCUSES) else reason


def _judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = unexcused(report)
    if os.environ.get("CI") == "true" and reason is not None:
        report.outcome = "failed"
        report.longrepr = (
            f"skipped in CI: {reason!r}\nA skip must give a reason that starts with one of "
            + ", ".join(repr(excuse) for excuse in EXCUSES)
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judge what a test reports of its setup, its call and its teardown."""
    report = yield
    _judge(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Judge a module that skips itself as a whole."""
    report = yield
    _judge(report)
    return report
