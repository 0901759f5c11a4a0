"""The host's app: what ``TURNKEEPER_APP`` names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.agents.definition import Agent
from shared.agents.memory import MemoryPolicy
from shared.domain.errors import ConfigError
from shared.models.port import ChatModel
from shared.owners.authenticator import Authenticator
from shared.turns.admission import TurnAdmission


@dataclass(frozen=True, slots=True)
class App:
    """A host's agents; the first is the default. ``model`` replaces the configured model port (tests, own adapters).

    ``memory`` says what is remembered of users and recalled for them; without it nothing is. ``authenticator`` tells who
    calls the producer, in place of API keys and tokens (API-16). ``admission`` has a say in every turn that is admitted, in
    the transaction that stores it (SES-132).
    """

    agents: Sequence[Agent]
    model: ChatModel | None = None
    memory: MemoryPolicy | None = None
    authenticator: Authenticator | None = None
    admission: TurnAdmission | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "agents", tuple(self.agents))
        if not self.agents:
            raise ConfigError("an app needs at least one agent", field="app.agents")
        names = [a.name for a in self.agents]
        if len(set(names)) != len(names):
            raise ConfigError("two agents have one name", field="app.agents")

    def agent(self, name: str = "") -> Agent:
        """Return the agent of this name, or the first one; raise ``ConfigError`` for an unknown name."""
        if not name:
            return self.agents[0]
        for agent in self.agents:
            if agent.name == name:
                return agent
        raise ConfigError(f"no agent {name!r}", field="agent")

    @property
    def revisions(self) -> tuple[str, ...]:
        """Every agent revision this app can run."""
        return tuple(dict.fromkeys(a.revision for a in self.agents))


def load_app(name: str) -> App:
    """Import the app that ``module:attribute`` names; the working directory is looked in too.

    Raises ``ConfigError`` that names what is missing. What the host's module itself raises passes unchanged.
    """
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
        raise ConfigError(f"TURNKEEPER_APP {name!r} must be module:attribute", field="TURNKEEPER_APP")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise
        raise ConfigError(f"TURNKEEPER_APP: no module {module_name!r}", field="TURNKEEPER_APP") from error
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        raise ConfigError(f"TURNKEEPER_APP: {name} is no App", field="TURNKEEPER_APP")
    return app
