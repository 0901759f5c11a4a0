"""Puts the turns queue of a process together: model, holdings, executor, runner, claimer and pump."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from shared.agents import App
from shared.domain.errors import ConfigError
from shared.domain.ids import TurnId
from shared.models.port import ChatModel
from shared.settings import DEFAULT_OPENAI_BASE_URL, Settings
from shared.tasks.port import TaskLimits
from shared.wakes.names import ACTIVITY, TURNS
from workers.context.history_cache import HistoryCache
from workers.executor import BoundedExecutor
from workers.parts import Room
from workers.pump import Pump
from workers.stores import WorkerStores
from workers.tasks.delivery import ResultDelivery
from workers.tasks.tools import ModelTasks
from workers.turns.claims import TurnClaimer
from workers.turns.holdings import Holding, Holdings
from workers.turns.runner import Recall, TurnRunner


@dataclass(frozen=True, slots=True)
class TurnParts:
    """The turns queue of one process."""

    pump: Pump[Holding]
    holdings: Holdings
    runner: TurnRunner
    services: tuple[Callable[[], Awaitable[None]], ...]


async def build_turns(
    settings: Settings,
    app: App,
    stores: WorkerStores,
    *,
    room: Room,
    stack: AsyncExitStack,
    recall: Recall | None,
) -> TurnParts:
    """Build the parts; ``stack`` closes what they own."""
    holdings = Holdings(
        stores.turns,
        stores.worker,
        lease_s=settings.turn_lease_s,
        renew_s=settings.turn_renew_s,
        poll_s=settings.cancel_poll_s,
    )
    model = await open_model(settings, app, stack)
    pump: Pump[Holding]

    def ring(ids: Sequence[TurnId]) -> None:
        # Our own pump hears it first; when it has no room it rings the queue for the workers elsewhere.
        pump.offer([str(one) for one in ids])

    deliver = ResultDelivery(store=stores.tasks, hints=stores.feed, failpoints=stores.failpoints, ring=ring)
    runner = TurnRunner(
        queue=stores.turns,
        log=stores.log,
        inbox=stores.inbox,
        app=app,
        model=model,
        default_model=settings.model,
        holdings=holdings,
        executor=_executor(settings, stores, stack),
        failpoints=stores.failpoints,
        feed=stores.feed,
        hints=stores.feed,
        ring=ring,
        recall=recall,
        histories=HistoryCache(settings.histories_max_mib * 1024 * 1024),
        deliver=deliver,
        model_tasks=_model_tasks(settings, stores, ring),
        on_end=(lambda: stores.wakes.ring(ACTIVITY)) if app.memory is not None else (lambda: None),
    )
    pump = Pump(
        queue=TURNS,
        capacity=room.capacity,
        claim=_claimer(settings, app, stores, holdings, room.capacity).claim,
        run=runner.run,
        name=lambda holding: str(holding.claim.turn_id),
        ring=lambda: stores.wakes.ring(TURNS),
        gate=room.gate,
        is_overloaded=room.is_overloaded,
        unasked_s=settings.unasked_claim_s,
    )

    async def hear_cancels() -> None:
        async for _turn in stores.feed.subscribe_worker(stores.worker):
            holdings.look_soon()

    return TurnParts(pump, holdings, runner, (holdings.renew_for_ever, holdings.watch_for_ever, hear_cancels))


def _model_tasks(
    settings: Settings, stores: WorkerStores, ring: Callable[[Sequence[TurnId]], None]
) -> ModelTasks:
    limits = TaskLimits(settings.tasks_max_running, settings.queued_turns_per_owner)
    return ModelTasks(store=stores.tasks, limits=limits, failpoints=stores.failpoints, ring=ring)


def served_revisions(settings: Settings, app: App) -> tuple[str, ...]:
    """Return what this worker serves: what the settings say, else every revision of the app."""
    return settings.served_revisions or app.revisions


async def open_model(settings: Settings, app: App | None, stack: AsyncExitStack) -> ChatModel:
    """Return the app's own model, or the configured endpoint's. Raises ``ConfigError`` without a key."""
    if app is not None and app.model is not None:
        return app.model
    key = settings.openai_api_key.get_secret_value()
    if not key:
        raise ConfigError(
            "OPENAI_API_KEY is not set (an endpoint without keys takes any value)", field="OPENAI_API_KEY"
        )

    # Its client takes half a second to import, and a host's own model needs none of it.
    from shared.models.openai_chat import OpenAIChatModel  # noqa: PLC0415 - loaded late, see above

    model = OpenAIChatModel(
        base_url=settings.openai_base_url or DEFAULT_OPENAI_BASE_URL,
        api_key=key,
        timeout_s=settings.model_timeout_s,
        retries=settings.model_retries,
    )
    stack.push_async_callback(model.aclose)
    return model


def _executor(settings: Settings, stores: WorkerStores, stack: AsyncExitStack) -> BoundedExecutor:
    executor = BoundedExecutor(
        settings.executor_threads, lost_max=settings.lost_threads_max, on_exhausted=stores.leave.set
    )
    stack.callback(executor.close)
    return executor


def _claimer(
    settings: Settings, app: App, stores: WorkerStores, holdings: Holdings, capacity: int
) -> TurnClaimer:
    return TurnClaimer(
        queue=stores.turns,
        holdings=holdings,
        worker=stores.worker,
        revisions=served_revisions(settings, app),
        lease_s=settings.turn_lease_s,
        attempts_max=settings.attempts_max,
        suspects_max=settings.suspects_max,
        running_per_owner=settings.running_turns_per_owner,
        capacity=capacity,
    )
