"""Programs that look at a tool's source without running it. Each runs inside a sandbox."""
