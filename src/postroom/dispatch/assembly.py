"""Puts the parts of a mailbox together: the one place that knows them all."""

from dataclasses import dataclass

from postroom.contracts.signals import DispatchSignals
from postroom.dispatch.config import SignalConfig
from postroom.dispatch.control import Control
from postroom.dispatch.core import Core
from postroom.dispatch.dispatcher import Dispatcher
from postroom.dispatch.execution import Execution
from postroom.dispatch.foreground import Foreground
from postroom.dispatch.inspection import Inspection
from postroom.dispatch.journal import Journal
from postroom.dispatch.lifecycle import Lifecycle
from postroom.dispatch.maintenance import Maintenance
from postroom.dispatch.pinning import Pinning
from postroom.dispatch.preparation import Preparation
from postroom.dispatch.recovery import Recovery
from postroom.dispatch.repair import CheckpointRepair
from postroom.dispatch.run_ends import RunEnds
from postroom.dispatch.signal_loop import SignalLoop
from postroom.dispatch.steering import Steering
from postroom.dispatch.submissions import Submissions
from postroom.dispatch.workers import Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one mailbox."""

    journal: Journal
    workers: Workers
    pinning: Pinning
    execution: Execution
    dispatcher: Dispatcher
    control: Control
    preparation: Preparation
    submissions: Submissions
    foreground: Foreground
    repair: CheckpointRepair
    recovery: Recovery
    maintenance: Maintenance
    inspection: Inspection
    signal_loop: SignalLoop | None
    lifecycle: Lifecycle


def assemble(
    core: Core, journal: Journal, signals: DispatchSignals | None, signal_config: SignalConfig | None
) -> Parts:
    """Return parts that work on the same core."""
    workers, pinning, ends = Workers(), Pinning(core.executor), RunEnds(core)
    execution = Execution(core, journal, ends, pinning)
    dispatcher = Dispatcher(core, workers, execution)
    control = Control(core, journal, ends, workers, execution)
    preparation = Preparation(core, journal, pinning, workers)
    steering = Steering(core, control, workers)
    submissions = Submissions(core, journal, preparation, dispatcher, control, steering)
    foreground = Foreground(core, journal, ends, preparation, dispatcher, control, submissions)
    repair = CheckpointRepair(core, journal)
    recovery = Recovery(core, journal, ends, dispatcher, submissions, repair)
    maintenance = Maintenance(core, ends, dispatcher, recovery, repair)
    loop = None
    if signals is not None:
        loop = SignalLoop(core, dispatcher, signals, signal_config or SignalConfig())
    dispatcher.after_run = submissions.after_run
    return Parts(
        journal=journal,
        workers=workers,
        pinning=pinning,
        execution=execution,
        dispatcher=dispatcher,
        control=control,
        preparation=preparation,
        submissions=submissions,
        foreground=foreground,
        repair=repair,
        recovery=recovery,
        maintenance=maintenance,
        inspection=Inspection(core, dispatcher, submissions),
        signal_loop=loop,
        lifecycle=Lifecycle(core, recovery, maintenance, dispatcher, loop.serve if loop else None),
    )
