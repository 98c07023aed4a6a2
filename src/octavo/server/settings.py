"""``ServerOptions``: what a user may choose about serving; flags of ``octavo serve``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.core.errors import ConfigError

CacheIsolation = Literal["none", "api-key"]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every interface."""
    port: int = 8000
    """0 lets the system choose; the ready line says which."""
    served_model_names: tuple[str, ...] = ()
    """Names that requests may use; empty is the model's own."""
    api_keys: tuple[str, ...] = ()
    """Bearer tokens that open the API; empty opens it to everyone who can connect."""
    cache_isolation: CacheIsolation = "none"
    """Who finds whose cached blocks: everyone everyone's, or each key its own."""
    allow_origins: tuple[str, ...] = ()
    """Origins that browsers may call from (CORS); empty is none."""
    max_num_queued_reqs: int = 1024
    """Requests that may wait; more are answered 503."""
    max_tokens_cap: int | None = None
    """Most output tokens of any request, whatever it asks for."""
    request_timeout_s: float | None = None
    """Seconds after which a request is ended."""
    shutdown_timeout_s: float = 30.0
    """Seconds that running requests get to end after the first SIGTERM."""
    max_body_bytes: int = 16 << 20
    """Largest request body."""
    metrics_prefix: str = "octavo"
    """Prefix of the metrics; vllm makes existing dashboards work."""
    log_stats: bool = True
    """Whether the periodic line is written."""
    log_stats_interval_s: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port {self.port} is not in 0 to 65535", param="--port")
        counts = {
            "--max-num-queued-reqs": self.max_num_queued_reqs,
            "--max-tokens-cap": self.max_tokens_cap,
            "--max-body-bytes": self.max_body_bytes,
        }
        for flag, value in counts.items():
            if value is not None and value < 1:
                raise ConfigError(f"{flag} is {value}; it must be at least 1", param=flag)
        if self.request_timeout_s is not None and self.request_timeout_s <= 0:
            raise ConfigError(
                f"--request-timeout is {self.request_timeout_s}; it must be above 0 seconds",
                param="--request-timeout",
            )
        if self.shutdown_timeout_s < 0:
            raise ConfigError(
                f"--shutdown-timeout is {self.shutdown_timeout_s}; it must be at least 0 seconds",
                param="--shutdown-timeout",
            )
        if not all(self.api_keys):
            raise ConfigError("an API key is empty", param="--api-key")
        if self.cache_isolation == "api-key" and not self.api_keys:
            raise ConfigError(
                "--cache-isolation api-key tells tenants apart by their keys, but no --api-key is given",
                param="--cache-isolation",
            )
