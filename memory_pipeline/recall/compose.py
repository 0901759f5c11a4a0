"""Recall: lookups of selected sources become one bounded, attributed piece of context (RCL-01 to 30)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Final

from memory_pipeline.recall.render import render
from memory_pipeline.recall.values import (
    PASSAGES_PER_LOOKUP_MAX,
    EstimateTokens,
    Found,
    Lookup,
    Recalled,
    RecallLimits,
    RecallSource,
    SourceOutcome,
    Sources,
    Unavailable,
    one_token_a_byte,
    outcome_of,
)
from memory_pipeline.store.documents import WHOLE, Passage, encode
from shared.domain.errors import ConfigError, RecallFailed

_TIMEOUT: Final = Unavailable("timeout")


async def recall(
    sources: Sources,
    limits: RecallLimits | None = None,
    *,
    estimate_tokens: EstimateTokens = one_token_a_byte,
) -> Recalled:
    """Ask the sources in order, under one deadline, and compose what fits.

    Raises ``RecallFailed`` with a reason: ``unavailable``, ``insufficient-freshness`` or ``timeout`` of an essential
    source, ``budget`` when the input bound is passed or nothing of an essential source's matches fits, ``conflict`` when
    one identity has two contents. A reader's own errors pass. Empty text when nothing was found.
    """
    bounds = limits or RecallLimits()
    _check_sources(sources, bounds)
    composing = _Composing(bounds, estimate_tokens)
    deadline = asyncio.get_running_loop().time() + bounds.timeout_s
    for source in sources:
        composing.add(source, await _read(source, deadline))
    return composing.result()


def _check_sources(sources: Sources, limits: RecallLimits) -> None:
    ids = [source.id for source in sources]
    if len(ids) > limits.max_sources:
        raise RecallFailed(f"more than {limits.max_sources} sources", reason="budget")
    if len(set(ids)) != len(ids) or not all(ids):
        raise ConfigError("recall sources need distinct ids", field="recall.sources")


async def _read(source: RecallSource, deadline: float) -> Lookup:
    """Read one source within what is left of the time; an essential one that is too slow fails the recall."""
    try:
        async with asyncio.timeout_at(deadline) as limit:
            lookup = await source.read()
    except TimeoutError:
        if not limit.expired():
            raise
        lookup = _TIMEOUT
    if (
        source.essential
        and not isinstance(lookup, Found)
        and (status := outcome_of(source, lookup)).status != "no-match"
    ):
        raise RecallFailed(
            "an essential source could not be recalled",
            source=source.id,
            reason=status.reason or status.status,
        )
    if isinstance(lookup, Found) and len(lookup.passages) > PASSAGES_PER_LOOKUP_MAX:
        raise RecallFailed("a source returned too many passages", source=source.id, reason="budget")
    return lookup


@dataclass(slots=True)
class _Composing:
    """The state of one composition; greedy in order: a later, smaller passage may still fit."""

    limits: RecallLimits
    estimate_tokens: EstimateTokens
    selected: list[tuple[str, Passage]] = field(default_factory=list)
    seen: dict[tuple[object, ...], str] = field(default_factory=dict)
    chosen: set[tuple[object, ...]] = field(default_factory=set)
    outcomes: list[SourceOutcome] = field(default_factory=list)
    input_bytes: int = 0

    def add(self, source: RecallSource, lookup: Lookup) -> None:
        outcome = outcome_of(source, lookup)
        if isinstance(lookup, Found):
            for passage in lookup.passages:
                outcome = self._consider(source, passage, outcome)
            if source.essential and lookup.passages and not (outcome.selected or outcome.deduplicated):
                raise RecallFailed("nothing of an essential source fits", source=source.id, reason="budget")
        self.outcomes.append(outcome)

    def _consider(self, source: RecallSource, passage: Passage, outcome: SourceOutcome) -> SourceOutcome:
        encoded = encode(passage.model_copy(update={"authority": None}))
        # Counted before anything is kept, duplicates and omitted ones included, for optional sources too.
        self.input_bytes += len(encoded.encode())
        if self.input_bytes > self.limits.max_input_bytes:
            raise RecallFailed("the passages considered are larger than the input bound", reason="budget")
        authority = f"reader:{source.id}" if passage.authority is None else f"given:{passage.authority}"
        identity: tuple[object, ...] = (
            authority,
            passage.source.id,
            passage.source.revision,
            passage.passage_id,
        )
        if passage.source.revision is None:
            identity = (*identity, encoded)
        if self.seen.setdefault(identity, encoded) != encoded:
            raise RecallFailed("one passage has two contents", source=source.id, reason="conflict")
        whole = (authority, passage.source.id, passage.source.revision, WHOLE)
        if identity in self.chosen or (passage.source.revision is not None and whole in self.chosen):
            # An excerpt says nothing new beside its whole document at the same revision.
            return replace(outcome, deduplicated=outcome.deduplicated + 1)
        candidate = [*self.selected, (authority, passage)]
        if not self._fits(candidate):
            return replace(outcome, omitted=outcome.omitted + 1)
        self.selected = candidate
        self.chosen.add(identity)
        return replace(outcome, selected=outcome.selected + 1)

    def _fits(self, candidate: list[tuple[str, Passage]]) -> bool:
        if len(candidate) > self.limits.max_items:
            return False
        if len({(authority, p.source.id) for authority, p in candidate}) > self.limits.max_sources:
            return False
        text = render(candidate)
        return (
            len(text.encode()) <= self.limits.max_bytes
            and self.estimate_tokens(text) <= self.limits.max_tokens
        )

    def result(self) -> Recalled:
        text = render(self.selected)
        return Recalled(
            text=text,
            passages=tuple(passage for _, passage in self.selected),
            outcomes=tuple(self.outcomes),
            bytes=len(text.encode()),
            estimated_tokens=self.estimate_tokens(text) if text else 0,
        )
