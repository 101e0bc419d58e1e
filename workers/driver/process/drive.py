"""A driver's process, from its fork to its end: it connects to Ray and drives one experiment.

It is a job of its own in Ray. When it ends, Ray ends the processes of its trials.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ray._raylet import setproctitle  # type: ignore[attr-defined]

from eigensweep.common import logs, traces
from eigensweep.common.variables import warn_of_unknown
from eigensweep.protocol.messages import DriverOptions
from eigensweep.workers.deaths import OTHER_CODE, Death, explain
from eigensweep.workers.driver import experiment as experiments
from eigensweep.workers.driver.process.driver_order import TITLE, DriverOrder
from eigensweep.workers.driver.process.ray_job import connect
from eigensweep.workers.tracking import secret_auth

logger = logging.getLogger(__name__)

UNCONNECTED: Final = Death("it ended before it was connected to Ray; its log may say why", "ray")


def drive(content: bytes, tell: Callable[[Death | None], None]) -> Death | None:
    """Drive an experiment to its end; return what ended the driver early, None: nothing.

    `content` is a pickled `DriverOrder`. Nothing is recorded of a death: the service hears of it,
    and starts another driver. What was last given to `tell` says what an end without a word means:
    Ray's library ends a process that it cannot connect, and raises nothing.
    """
    try:
        order: DriverOrder = pickle.loads(content)
    except Exception as error:
        logger.exception("a driver could not read what it was told")
        death = explain(error)
        return death if death.cause != "failure" else Death(f"{OTHER_CODE} ({error!r})", "code")
    setproctitle(f"{TITLE} {order.experiment}")
    logs.name_process(order.experiment)
    begin_driver(order.options)
    tell(UNCONNECTED)
    try:
        connect(order.experiment, address=order.address)
    except Exception as error:
        logger.exception("driver cannot connect to Ray experiment=%s", order.experiment)
        return replace(explain(error), cause="ray")
    tell(None)
    try:
        run_traced(order)
    except BaseException as error:
        death = explain(error)
        if death.cause == "superseded":
            logger.info("driver ends experiment=%s %s", order.experiment, death)
        else:
            logger.exception("driver died experiment=%s", order.experiment)
        return death
    return None


def begin_driver(options: DriverOptions) -> None:
    """Set up the log of a driver's process, and name variables that nothing reads."""
    logs.set_up(options.log_format)
    traces.set_up("driver", options.otlp_endpoint)
    warn_of_unknown(os.environ, logger)
    if options.mlflow_token is not None:
        os.environ.update(secret_auth.make_variables(options.mlflow_token))


def run_traced(order: DriverOrder) -> None:
    """Run an experiment, and send its spans before anybody hears that it is over."""
    try:
        with traces.span("driver", order.options.trace, experiment=order.experiment):
            inside = replace(order.options, trace=traces.carry())
            experiments.run_experiment(order.experiment, order.spec, order.ledger, inside)
    finally:
        traces.flush()
