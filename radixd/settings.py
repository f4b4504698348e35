"""Every setting of the daemon as one frozen value, with its default and its limits.

Plain values only: any room may import this module, and it imports none of them.  Sizes are in
bytes, times in seconds, lengths in tokens or pages as the name says.
"""

from typing import Literal

import msgspec

DEFAULT_MODEL = "smollm2-135m-instruct"

WorkerKind = Literal["torch", "simulated"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
PolicyName = Literal["fcfs", "lpm"]
SharingMode = Literal["same-step", "next-step", "off"]

PAGE_SIZE_MAX = 1024
KV_PAGES_MAX = 1 << 24
"""A pool's books take about 10 bytes of the control process for each page."""


class SettingsError(ValueError):
    """A setting is unknown or impossible; the message names it and its limit."""

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(f"{setting}: {reason}")
        self.setting = setting
        self.reason = reason


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How one daemon runs; see ``docs/settings.md`` for the flags and variables."""

    model: str = DEFAULT_MODEL
    served_model_name: str | None = None
    tokenizer: str | None = None
    """Path of a ``tokenizer.json`` that replaces the model's own."""
    chat_template: str | None = None
    """Path of a Jinja template that replaces the model's own."""
    worker: WorkerKind = "torch"
    dtype: Dtype = "auto"
    host: str = "127.0.0.1"
    port: int = 8000
    page_size: int = 16
    kv_pages: int | None = None
    """Pages of KV memory, the scratch page included; excludes ``kv_memory``."""
    kv_memory: int | None = None
    """Bytes of KV memory; excludes ``kv_pages``."""
    max_model_len: int | None = None
    """Longest prompt plus answer in tokens; by default the model's own context length."""
    policy: PolicyName = "fcfs"
    share_in_flight: SharingMode = "same-step"
    max_running: int = 64
    """Requests that compute at the same time."""
    max_step_tokens: int = 2048
    """Tokens of one forward pass, decodes and prefill chunks together."""
    max_requests: int = 1024
    """Requests in the daemon at one time, waiting ones included; more are refused with 429."""
    disable_cache: bool = False
    drain_timeout: float = 30.0
    """Seconds that running requests get to finish after SIGTERM."""
    cache_dir: str | None = None
    """Where models are kept; by default ``radixd`` in the user's cache directory."""
    log_format: Literal["auto", "text", "json"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def check(self) -> None:
        """Raise `SettingsError` for the first setting that cannot work."""
        for setting in ("host", "model", "served_model_name"):
            if getattr(self, setting) == "":
                raise SettingsError(setting, "it must not be empty")
        _between("page_size", self.page_size, 1, PAGE_SIZE_MAX)
        _between("port", self.port, 0, 65_535)
        _between("max_running", self.max_running, 1, 4_096)
        _between("max_requests", self.max_requests, 1, 100_000)
        _between("max_step_tokens", self.max_step_tokens, 1, 1_000_000)
        if self.max_step_tokens <= self.max_running:
            raise SettingsError(
                "max_step_tokens",
                f"{self.max_step_tokens} leaves no room for a prefill beside max_running = "
                f"{self.max_running} decoding requests; it must be larger",
            )
        if self.kv_pages is not None and self.kv_memory is not None:
            raise SettingsError("kv_memory", "give kv_pages or kv_memory, not both")
        if self.kv_pages is not None:
            _between("kv_pages", self.kv_pages, 2, KV_PAGES_MAX)
        if self.kv_memory is not None and self.kv_memory < 1:
            raise SettingsError("kv_memory", f"{self.kv_memory} bytes hold no page")
        if self.max_model_len is not None:
            _between("max_model_len", self.max_model_len, 2, 1 << 31)
        if not 0 <= self.drain_timeout <= 86_400:
            raise SettingsError("drain_timeout", f"{self.drain_timeout} is not within 0 to 86400 s")


def _between(setting: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise SettingsError(setting, f"{value} is not within {least} to {most}")
