"""On Windows programs end with their server, by a job of the system; elsewhere the next server finds them."""

import importlib
import sys
from typing import Any

_HELD: list[Any] = []
"""The system closes it with this process, and ends whatever is in it."""


def end_programs_with_this_process(*, platform: str = sys.platform) -> None:
    """Have every process that this one starts from now on end with it, however it ends; on Windows alone."""
    if platform != "win32":
        return
    api, jobs = importlib.import_module("win32api"), importlib.import_module("win32job")
    job, kind = jobs.CreateJobObject(None, ""), jobs.JobObjectExtendedLimitInformation
    limits = jobs.QueryInformationJobObject(job, kind)
    limits["BasicLimitInformation"]["LimitFlags"] |= jobs.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
    jobs.SetInformationJobObject(job, kind, limits)
    jobs.AssignProcessToJobObject(job, api.GetCurrentProcess())
    _HELD.append(job)
