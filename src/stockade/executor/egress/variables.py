"""What tells a sandbox's programs where the proxy is."""

from typing import Final

from stockade.port import EgressPolicy

PORT: Final = 3128
"""Of the sandbox's own loopback device."""
_HTTP: Final = f"http://127.0.0.1:{PORT}"
_FOR_NODE: Final = "/opt/stockade/stockade_guest/proxy_for_node.js"
_DIRECT: Final = "localhost,127.0.0.1,::1"


def proxy_variables(policy: EgressPolicy) -> dict[str, str]:
    """Variables for the usual clients; none where nothing listens."""
    if not policy.listens:
        return {}
    # all_proxy too: where it names SOCKS, httpx and what is built on it fail at once, unless a
    # package is installed that few have. Who wants SOCKS finds it at the same port.
    usual = {"http_proxy": _HTTP, "https_proxy": _HTTP, "all_proxy": _HTTP, "no_proxy": _DIRECT}
    java = " ".join(
        f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort={PORT}"
        for scheme in ("http", "https")
    )
    return {
        **usual,
        **{name.upper(): value for name, value in usual.items()},
        # Node.js since 22.21 and 24 by itself; an older one by what is preloaded.
        "NODE_USE_ENV_PROXY": "1",
        "NODE_OPTIONS": f"--require={_FOR_NODE}",
        "npm_config_proxy": _HTTP,
        "npm_config_https_proxy": _HTTP,
        "npm_config_noproxy": _DIRECT,
        "JAVA_TOOL_OPTIONS": f"{java} -Dhttp.nonProxyHosts=localhost|127.*|[::1]",
    }
