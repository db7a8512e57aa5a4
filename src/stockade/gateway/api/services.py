"""What the API works with."""

from dataclasses import dataclass

from stockade.gateway.artefacts import ArtefactStore
from stockade.gateway.audit import Audit
from stockade.gateway.brokering import Broker
from stockade.gateway.calls import Calls
from stockade.gateway.database import Database
from stockade.gateway.executors import Executors
from stockade.gateway.keys import Caller, Keys
from stockade.gateway.ledger import Ledger
from stockade.gateway.logs import Log
from stockade.gateway.metrics import Metrics
from stockade.gateway.sandboxes import Sandboxes
from stockade.gateway.settings import GatewaySettings
from stockade.gateway.tools import Tools
from stockade.gateway.tools_calls import ToolCalls
from stockade.gateway.tracing import Tracing
from stockade.gateway.workspaces import Workspaces


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a gateway, all of them open."""

    settings: GatewaySettings
    database: Database
    keys: Keys
    ledger: Ledger
    audit: Audit
    artefacts: ArtefactStore
    workspaces: Workspaces
    broker: Broker
    executors: Executors
    sandboxes: Sandboxes
    calls: Calls
    tools: Tools
    tool_calls: ToolCalls
    metrics: Metrics
    log: Log
    tracing: Tracing
    nobody: Caller | None = None
    """Who calls without a key: in ``auth_mode=dev`` alone."""
