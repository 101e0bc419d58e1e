"""Engines that tests turn themselves, on a clock that stands still unless lanes train."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from clocks import Clock
from orders import make_order
from toys import trial

from eigensweep.protocol.messages import Order, Report
from eigensweep.training.lanes.engine.engine import Engine
from eigensweep.training.lanes.engine.groups import Sharing
from eigensweep.training.lanes.engine.members import MemberLane
from eigensweep.training.lanes.stacked.group import LaneError


class AtOnce(Executor):
    """A pool that does everything where it is asked to."""

    def submit(self, act, /, *arguments, **named):
        done = Future()
        try:
            done.set_result(act(*arguments, **named))
        except Exception as error:
            done.set_exception(error)
        return done

    def shutdown(self, wait=True, *, cancel_futures=False):
        pass


class Lockstep:
    """A group whose lanes each train a few steps in turn; a step of all lanes takes a second."""

    steps = 5
    trained = 0
    """Steps taken, of all lanes together."""

    def __init__(self, clock, lanes):
        self.clock, self.lanes, self.trainings = clock, lanes, []
        self.fails = None
        """Called with the group before it trains; raises what is to go wrong."""
        self.is_closed = False

    @property
    def free(self):
        return self.lanes - len(self.trainings)

    def join(self, training):
        assert self.free
        self.trainings.append(training)

    def advance(self, seconds):
        self.clock.now += self.steps
        if self.fails is not None:
            self.fails(self)
        for training in list(self.trainings):
            before = training.step
            try:
                training.run(training.step + self.steps)
            except Exception as error:
                raise LaneError(training) from error
            self.trained += training.step - before

    def update(self, training):
        assert training in self.trainings

    def leave(self, training):
        self.trainings.remove(training)

    def close(self):
        self.is_closed = True


class Bench:
    """An engine of such groups, and the orders it is given."""

    def __init__(self, folder: Path, lanes: int = 4, **settings: Any) -> None:
        self.folder, self.clock = folder, Clock()
        self.groups: list[Lockstep] = []
        self.fails = None
        """What the groups made from now on call before they train."""
        self.engine = Engine(
            "cpu",
            lanes,
            sharing=Sharing(
                shape_key=lambda config: f"{config.model.name}-{config.task.batch_size}",
                explain_alone=lambda config: "it is alone" if config.seed >= 900 else None,
                make_group=self.make_group,
            ),
            clock=self.clock,
            writers=AtOnce(),
            in_background=False,
            **settings,
        )

    def make_group(self, training: Any, lanes: int) -> Lockstep:
        group = Lockstep(self.clock, lanes)
        group.fails = self.fails
        self.groups.append(group)
        return group

    def order(self, number: int, *, attempt: int = 1, rungs: Any = None, **config: Any) -> Order:
        parsed = trial(**config).resolve()
        steps, every = parsed.training.steps, parsed.training.evaluate_every
        return make_order(
            number=number,
            attempt=attempt,
            config=parsed.model_dump(mode="json"),
            rungs=rungs or (*range(every, steps, every), steps),
            storage=str(self.folder),
        )

    def until_report(self, order: Order, turns: int = 200) -> Report:
        """Turn the engine until the next report of a trial is there."""
        for _ in range(turns):
            if (report := self.engine.ask(order, 0)) is not None:
                return report
            self.engine.turn()
        raise AssertionError(f"no report: {self.status()}")

    def to_the_end(self, *orders: Order) -> list[list[Report]]:
        """Return the reports of each order's trial to its end."""
        reports: list[list[Report]] = [[] for _ in orders]
        while not all(r and r[-1].outcome for r in reports):
            for order, told in zip(orders, reports, strict=True):
                if not (told and told[-1].outcome) and (report := self.engine.ask(order, 0)):
                    told.append(report)
            self.engine.turn()
        return reports

    def in_lanes(self) -> set[tuple[int, int]]:
        """Return number and seed of every replicate in a lane."""
        groups = self.status()["groups"]
        return {(lane["trial"], lane["seed"]) for g in groups for lane in g["occupied"]}

    def status(self) -> dict[str, list[dict[str, Any]]]:
        """Return who is in which lane of which group, and who waits for one."""
        groups = [
            {
                "shape": group.name,
                "lanes": group.trainer.lanes,
                "occupied": list(map(describe, group.occupied)),
            }
            for group in self.engine._groups._known.values()
        ]
        return {"groups": groups, "waiting": list(map(describe, self.engine._loop._waiting()))}


def describe(lane: MemberLane) -> dict[str, Any]:
    """Return who has a lane, or waits for one."""
    order, training = lane.trial.order, lane.replicate.training
    about = {"experiment": order.experiment, "trial": order.number}
    return {**about, "seed": training.seed, "step": training.step}
